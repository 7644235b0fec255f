use super::*;

#[tokio::test]
async fn the_coordinators_of_a_file_are_called_and_the_node_itself_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let text = format!(
        "[node]\nid = 2\n[listen]\npublic = \"x\"\n[cluster.bootstrap]\n1 = \"{gone}\"\n2 = \
         \"127.0.0.1:1\"\n3 = \"no address\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let found = check(&NodeFile::read(&file).unwrap()).await;
    let verdicts: Vec<_> = found.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Notice, Verdict::Bad], "{found:?}");
    let text = format!(
        "[cluster]\ncoordinators = [\"{}\"]\n",
        silent.local_addr().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    let found = check(&NodeFile::read(&file).unwrap()).await;
    assert_eq!(found.len(), 1, "{found:?}");
}

#[tokio::test]
async fn a_worker_whose_coordinators_all_refuse_cannot_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let address = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let list = format!(
        "[cluster]\ncoordinators = [\"{}\", \"{}\"]\n",
        address(),
        address()
    );
    std::fs::write(&file, list).unwrap();
    let found = check(&NodeFile::read(&file).unwrap()).await;
    let verdicts: Vec<_> = found.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Bad, Verdict::Bad], "{found:?}");
}
