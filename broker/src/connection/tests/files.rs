//! Replies with regions of files.

use super::*;

/// A file that may or may not let itself be sent by the kernel.
#[derive(Debug)]
struct FileSource {
    file: std::fs::File,
    sendable: bool,
}

impl odradek_protocol::response::RegionSource for FileSource {
    fn std_file(&self) -> Option<&std::fs::File> {
        self.sendable.then_some(&self.file)
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, position)
    }
}

#[tokio::test]
async fn regions_of_files_arrive_whole_between_bytes_however_they_are_sent() {
    use crate::connection::send::Outgoing;
    use odradek_protocol::response::{Chunk, FileRegion};
    use std::io::Write as _;

    let contents: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&contents).expect("written");
    for sendable in [true, false] {
        let source = Arc::new(FileSource {
            file: file.try_clone().expect("cloned"),
            sendable,
        });
        let region = |position: usize, len: usize| {
            Chunk::Region(FileRegion {
                source: Arc::clone(&source) as Arc<dyn odradek_protocol::response::RegionSource>,
                position: position as u64,
                len,
            })
        };
        let mut outgoing = Outgoing::default();
        outgoing.push(Chunk::Bytes(Bytes::from_static(b"head")));
        outgoing.push(region(5, 2_000_000));
        outgoing.push(Chunk::Bytes(Bytes::from_static(b"mid")));
        outgoing.push(Chunk::Bytes(Bytes::from_static(b"dle")));
        outgoing.push(region(2_999_999, 1));
        outgoing.push(region(0, 0));
        let mut expected = b"head".to_vec();
        expected.extend_from_slice(&contents[5..2_000_005]);
        expected.extend_from_slice(b"middle");
        expected.push(contents[2_999_999]);
        assert_eq!(outgoing.len(), expected.len());

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("it has one");
        let reading = tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.expect("read");
            received
        });
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut counted = 0;
        outgoing
            .send(&stream, |sent| counted += sent)
            .await
            .expect("sent");
        drop(stream);
        assert_eq!(counted, expected.len());
        assert_eq!(outgoing.len(), 0);
        let received = reading.await.expect("no panic");
        assert!(received == expected, "sendable: {sendable}");
    }
}

#[tokio::test]
async fn a_file_that_ends_before_its_region_ends_the_connection_instead_of_the_reply() {
    use crate::connection::send::Outgoing;
    use odradek_protocol::response::{Chunk, FileRegion};

    for sendable in [true, false] {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(10).expect("sized");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("it has one");
        let _client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut outgoing = Outgoing::default();
        outgoing.push(Chunk::Region(FileRegion {
            source: Arc::new(FileSource { file, sendable }),
            position: 4,
            len: 100,
        }));
        let error = outgoing.send(&stream, |_| {}).await.expect_err("too short");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
