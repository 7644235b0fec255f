use std::io::{Read, Write};

use axum::body::Body;
use futures::stream;
use http_body_util::BodyExt;
use proptest::prelude::*;

use super::*;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(work)
}

fn pieces(bytes: &[u8], size: usize) -> Body {
    let pieces: Vec<_> = bytes.chunks(size).map(<[u8]>::to_vec).collect();
    Body::from_stream(stream::iter(
        pieces.into_iter().map(Ok::<_, std::io::Error>),
    ))
}

fn packed(bytes: &[u8], encoding: Encoding) -> Vec<u8> {
    let whole = deflated(Body::from(bytes.to_vec()), encoding);
    block_on(whole.collect()).unwrap().to_bytes().to_vec()
}

fn unpacked(bytes: &[u8], size: usize, encoding: Encoding) -> Result<Vec<u8>, axum::Error> {
    let body = inflated(pieces(bytes, size), encoding, 1 << 20);
    block_on(body.collect()).map(|body| body.to_bytes().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_compressed_in_pieces_is_inflated_from_any_others(
        bytes in proptest::collection::vec(0..4_u8, 0..4_000),
        written in 1..700_usize,
        read in 1..700_usize,
    ) {
        for encoding in Encoding::ALL {
            let body = deflated(pieces(&bytes, written), encoding);
            let packed = block_on(body.collect()).unwrap().to_bytes();
            prop_assert_eq!(&unpacked(&packed, read, encoding).unwrap(), &bytes);
        }
    }

    #[test]
    fn any_bytes_are_a_body_or_refused(bytes in proptest::collection::vec(any::<u8>(), 1..300), cut in 1..9_usize) {
        for encoding in Encoding::ALL {
            let _ = unpacked(&bytes, cut, encoding);
        }
    }

    #[test]
    fn any_header_chooses(text in "[a-z*;=,0-9. ]{0,40}") {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, text.parse().unwrap());
        wanted(&headers);
    }
}

#[test]
fn each_piece_can_be_read_before_the_next_is_there() {
    for encoding in Encoding::ALL {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(1);
        let body = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut body = deflated(Body::from_stream(body), encoding);
        let mut sent = Vec::new();
        block_on(async {
            let mut all = String::new();
            for index in 0..5 {
                let event = format!("data: {index} and more of that\n\n");
                all.push_str(&event);
                sender.send(Ok(event)).await.unwrap();
                let frame = body.frame().await.unwrap().unwrap();
                sent.extend_from_slice(&frame.into_data().unwrap());
                let mut read = vec![0; all.len()];
                let reader: Box<dyn Read> = match encoding {
                    Encoding::Zstd => {
                        Box::new(zstd::stream::read::Decoder::new(&sent[..]).unwrap())
                    }
                    Encoding::Gzip => Box::new(flate2::read::GzDecoder::new(&sent[..])),
                    Encoding::Deflate => Box::new(flate2::read::ZlibDecoder::new(&sent[..])),
                };
                { reader }.read_exact(&mut read).unwrap();
                assert_eq!(read, all.as_bytes(), "{encoding:?}");
            }
        });
    }
}

#[test]
fn what_came_before_a_body_broke_off_is_sent_without_an_end() {
    for encoding in Encoding::ALL {
        let pieces = [
            Ok("some rows\n"),
            Ok("more\n"),
            Err(std::io::Error::other("gone")),
        ];
        let mut body = deflated(Body::from_stream(stream::iter(pieces)), encoding);
        let mut sent = Vec::new();
        let broken = block_on(async {
            loop {
                match body.frame().await.unwrap() {
                    Ok(frame) => sent.extend_from_slice(&frame.into_data().unwrap()),
                    Err(error) => return error,
                }
            }
        });
        assert!(
            broken.to_string().contains("gone"),
            "{encoding:?}: {broken}"
        );
        let mut body = inflated(Body::from(sent.clone()), encoding, 1 << 20);
        let first = block_on(body.frame()).unwrap().unwrap();
        assert_eq!(
            first.into_data().unwrap(),
            "some rows\nmore\n",
            "{encoding:?}"
        );
        assert!(unpacked(&sent, 64, encoding).is_err(), "{encoding:?}");
    }
}

#[test]
fn a_large_answer_is_compressed_step_by_step() {
    for encoding in Encoding::ALL {
        let mut body = deflated(Body::from(vec![0; 4 << 20]), encoding);
        let (mut steps, mut packed) = (0, Vec::new());
        block_on(async {
            while let Some(frame) = body.frame().await {
                packed.extend_from_slice(&frame.unwrap().into_data().unwrap());
                steps += 1;
            }
        });
        assert!(32 <= steps, "{encoding:?}: {steps}");
        let body = inflated(Body::from(packed), encoding, 4 << 20);
        let body = block_on(body.collect()).unwrap().to_bytes();
        assert_eq!(body.len(), 4 << 20, "{encoding:?}");
    }
}

#[test]
fn a_body_that_was_cut_is_not_taken_for_a_whole_one() {
    let text = b"some rows\n".repeat(50);
    for encoding in Encoding::ALL {
        let whole = packed(&text, encoding);
        assert_eq!(unpacked(&whole, 7, encoding).unwrap(), text);
        let cut = unpacked(&whole[..whole.len() - 5], 7, encoding);
        assert!(cut.is_err(), "{encoding:?}");
        assert_eq!(unpacked(b"", 1, encoding).unwrap(), b"");
    }
}

#[test]
fn a_bomb_is_found_early_and_its_kind_is_known() {
    let zeros = vec![0; 64 << 20];
    let best = flate2::Compression::best();
    for encoding in Encoding::ALL {
        let mut bomb = Vec::new();
        match encoding {
            Encoding::Zstd => zstd::stream::copy_encode(&zeros[..], &mut bomb, 9).unwrap(),
            Encoding::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(&mut bomb, best);
                encoder.write_all(&zeros).unwrap();
            }
            Encoding::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(&mut bomb, best);
                encoder.write_all(&zeros).unwrap();
            }
        }
        assert!(bomb.len() < 1 << 17, "{encoding:?}: {}", bomb.len());
        let mut body = inflated(pieces(&bomb, 1 << 10), encoding, 1 << 20);
        let mut given = 0;
        let refused = block_on(async {
            loop {
                match body.frame().await.unwrap() {
                    Ok(frame) => given += frame.into_data().unwrap().len(),
                    Err(error) => return error,
                }
            }
        });
        assert!(is_too_much(&refused), "{encoding:?}: {refused}");
        assert!(given < 48 << 20, "{encoding:?}: {given}");
    }
    // A frame that asks for more memory than it may.
    let mut greedy = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    greedy.window_log(27).unwrap();
    greedy.write_all(b"little").unwrap();
    assert!(unpacked(&greedy.finish().unwrap(), 64, Encoding::Zstd).is_err());
}

#[test]
fn the_client_chooses_how() {
    for (accepted, expected) in [
        ("", None),
        ("gzip, deflate, br", Some(Encoding::Gzip)),
        ("gzip, deflate, br, zstd", Some(Encoding::Zstd)),
        ("zstd;q=0.2, gzip;q=0.8", Some(Encoding::Gzip)),
        ("gzip;q=0, identity", None),
        ("identity, gzip;q=0.5", None),
        ("*", Some(Encoding::Zstd)),
        ("*, zstd;q=0", Some(Encoding::Gzip)),
        ("br", None),
        ("x-gzip", Some(Encoding::Gzip)),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, accepted.parse().unwrap());
        assert_eq!(wanted(&headers), expected, "{accepted}");
    }
}
