//! Coordinators that come back with another directory than they left: an empty one, an older one,
//! one whose log ends sooner, and one that is in use already. None may take part with it. Each must
//! end by itself and say why; then it gets its own directory back, as from a disk that was found.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::test_bed::TestBed;

/// How long a coordinator may take to find out that it is not the member that it was.
const REFUSED: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);

/// What is wrong with a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is empty.
    Wiped,
    /// It is that of an earlier start.
    Stale,
    /// It is that of a moment ago: the end of the log is missing.
    Cut,
}

/// Lets a coordinator come back with a directory that is wrong.
///
/// # Errors
/// When it takes part with it, or the directory could not be exchanged.
pub(super) async fn exchange(
    bed: &mut TestBed,
    node: usize,
    wrong: Wrong,
    lasts: Duration,
) -> Result<Vec<usize>, String> {
    let data = data(bed, node)?;
    let (other, kept) = (beside(&data, "other"), beside(&data, "kept"));
    match wrong {
        Wrong::Wiped => bed.nodes[node].kill(),
        Wrong::Stale => {
            bed.nodes[node].kill();
            copy(&data, &other)?;
            bed.begin(node, None)?;
        }
        Wrong::Cut => {
            let disk = bed.nodes[node].disk.as_ref().ok_or("a node with no disk")?;
            // As it would be if the power went now.
            let aside = beside(&disk.folder, "moment");
            disk.freeze()?;
            let copied = copy(&data, &aside);
            disk.thaw();
            copied?;
            copy(&aside, &other)?;
            remove(&aside);
        }
    }
    if wrong != Wrong::Wiped {
        // So long that others have seen more of it.
        sleep(lasts.max(Duration::from_secs(5))).await;
        bed.nodes[node].kill();
    }
    std::fs::rename(&data, &kept).map_err(|error| error.to_string())?;
    if wrong != Wrong::Wiped {
        std::fs::rename(&other, &data).map_err(|error| error.to_string())?;
    }
    bed.begin(node, None)?;
    let refused = refuses(bed, node).await;
    bed.nodes[node].kill();
    remove(&data);
    std::fs::rename(&kept, &data).map_err(|error| error.to_string())?;
    bed.begin(node, None)?;
    refused.map(|()| vec![node])
}

/// Starts a second process over a copy of a coordinator's directory, beside the first.
///
/// # Errors
/// When it takes part, or could not be started.
pub(super) async fn clone(bed: &mut TestBed, node: usize) -> Result<Vec<usize>, String> {
    let data = data(bed, node)?;
    let copied = beside(&data, "copied");
    bed.nodes[node].kill();
    copy(&data, &copied)?;
    bed.begin(node, None)?;
    // The first one is known before the second comes.
    sleep(Duration::from_secs(5)).await;
    let second = bed.begin_second(node, &copied)?;
    let refused = ends(second, "another process runs as coordinator").await;
    remove(&copied);
    refused?;
    match bed.nodes[node].runs() {
        true => Ok(vec![node]),
        false => Err(format!(
            "the first of two processes ended: {}",
            bed.nodes[node].last_words()
        )),
    }
}

async fn refuses(bed: &mut TestBed, node: usize) -> Result<(), String> {
    let by = Instant::now() + REFUSED;
    while bed.nodes[node].runs() {
        if by < Instant::now() {
            return Err(format!(
                "{} takes part with a directory that is not its own: {}",
                bed.nodes[node].name,
                bed.nodes[node].last_words()
            ));
        }
        sleep(LOOK).await;
    }
    let words = bed.nodes[node].last_words();
    match words.contains("volley cluster replace") {
        true => Ok(()),
        false => Err(format!(
            "{} does not say why it ended: {words}",
            bed.nodes[node].name
        )),
    }
}

async fn ends((mut child, log): (std::process::Child, PathBuf), why: &str) -> Result<(), String> {
    let by = Instant::now() + REFUSED;
    while matches!(child.try_wait(), Ok(None)) {
        if by < Instant::now() {
            // It has ended, or ends here.
            let _ = child.kill();
            let _ = child.wait();
            return Err("a second process over a copied directory takes part".to_owned());
        }
        sleep(LOOK).await;
    }
    let words = std::fs::read_to_string(&log).unwrap_or_default();
    match words.contains(why) {
        true => Ok(()),
        false => Err(format!(
            "the second process does not say why it ended: {words}"
        )),
    }
}

fn data(bed: &TestBed, node: usize) -> Result<PathBuf, String> {
    let disk = bed.nodes[node].disk.as_ref().ok_or("a node with no disk")?;
    Ok(disk.folder.join("data"))
}

fn beside(folder: &Path, name: &str) -> PathBuf {
    folder.with_extension(name)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    remove(to);
    let copied = std::fs::create_dir_all(to).and_then(|()| {
        for file in std::fs::read_dir(from)? {
            let file = file?;
            std::fs::copy(file.path(), to.join(file.file_name()))?;
        }
        Ok(())
    });
    copied.map_err(|error| format!("copying {}: {error}", from.display()))
}

fn remove(folder: &Path) {
    // It may not be there.
    let _ = std::fs::remove_dir_all(folder);
}
