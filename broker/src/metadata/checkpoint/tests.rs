//! Checkpoints on a disk that stops at every step, and ones that were damaged or sent in pieces.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use odradek_protocol::ids::{NodeId, TimestampMs};
use odradek_storage::SimDisk;
use odradek_storage::disk::OpenMode;
use parking_lot::Mutex;

use super::fetch::{CheckpointSource, FetchError, Fetcher};
use super::store::{Piece, Store};
use super::*;
use crate::metadata::test_support::{apply, random_records};
use crate::test_random::seeded;

const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

fn dir() -> PathBuf {
    PathBuf::from("/data/__cluster_metadata-0")
}

fn disk() -> (SimDisk, Arc<dyn Disk>) {
    let disk = SimDisk::new();
    let shared = disk.shared();
    shared.create_dir_all(&dir()).expect("made");
    shared.sync_dir(Path::new("/")).expect("synced");
    shared.sync_dir(Path::new("/data")).expect("synced");
    (disk, shared)
}

/// An image, and one that comes after it.
fn images() -> (MetadataImage, MetadataImage) {
    let mut rng = seeded();
    let mut image = MetadataImage::default();
    let mut first = image.clone();
    for step in 0..120 {
        let records = random_records(&mut rng, &image);
        apply(&mut image, &records);
        image.stands_at(image.next_offset(), LeaderEpoch::new(step / 10));
        if step == 60 {
            first = image.clone();
        }
    }
    (first, image)
}

#[test]
fn names_are_kafkas_and_nothing_else_is_taken_for_one() {
    let id = CheckpointId {
        end: Offset::new(1_234),
        epoch: LeaderEpoch::new(7),
    };
    let name = "00000000000000001234-0000000007.checkpoint";
    assert_eq!(id.file_name(), name);
    assert_eq!(CheckpointId::parse(name), Some(id));
    for other in [
        "00000000000000001234-0000000007.checkpoint.part",
        "1234-7.checkpoint",
        "leader-epoch-checkpoint",
        "00000000000000001234.log",
    ] {
        assert_eq!(CheckpointId::parse(other), None, "{other}");
    }
}

#[test]
fn a_power_cut_at_any_step_leaves_the_checkpoint_before_or_the_new_one() {
    let (first, second) = images();
    let mut steps = 0;
    for stop in 1.. {
        let (disk, shared) = disk();
        write(&*shared, &dir(), &first, NOW).expect("written");
        let begun = disk.steps();
        disk.stop_at(begun + stop);
        let written = write(&*shared, &dir(), &second, NOW);
        let finished = !disk.is_stopped();
        disk.power_cut(stop);
        let shared = disk.shared();
        clear_parts(&*shared, &dir()).expect("cleared");
        let found = newest(&*shared, &dir())
            .expect("read")
            .expect("there is one");
        if written.is_ok() {
            assert_eq!(found, second, "what was said to be durable is there");
        } else {
            assert!(found == first || found == second);
        }
        let names = shared.list(&dir()).expect("listed");
        assert!(names.iter().all(|entry| !entry.name.ends_with(PART)));
        if finished {
            steps = stop;
            break;
        }
    }
    assert!(steps > 4, "it was stopped at {steps} steps");
}

#[test]
fn whatever_is_damaged_or_missing_is_noticed() {
    let (_, image) = images();
    let (_, shared) = disk();
    let id = write(&*shared, &dir(), &image, NOW).expect("written");
    let path = dir().join(id.file_name());
    let whole = shared.read_file(&path, 1 << 24).expect("read");
    let reads = |bytes: &[u8]| {
        let file = shared.open(&path, OpenMode::Create).expect("opened");
        file.set_len(0).expect("emptied");
        file.write_at(bytes, 0).expect("written");
        read(&*shared, &path, id)
    };
    assert_eq!(reads(&whole).expect("sound"), image);
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        assert!(reads(&damaged).is_err(), "a bit of byte {at}");
    }
    for end in (0..whole.len()).step_by(11) {
        assert!(reads(&whole[..end]).is_err(), "cut at {end}");
    }
    let followed = [&whole[..], &whole[..100]].concat();
    assert!(reads(&followed).is_err());
}

/// Another node, which hands out small pieces and can fall silent.
struct Other {
    store: Arc<Store>,
    piece_bytes: usize,
    asked: Mutex<usize>,
    silent_after: usize,
    /// Bytes that arrive wrongly.
    garbles: bool,
}

impl CheckpointSource for Arc<Other> {
    fn piece(
        &self,
        _: NodeId,
        wanted: Option<CheckpointId>,
        position: u64,
    ) -> BoxFuture<'static, Result<Piece, FetchError>> {
        let this = Arc::clone(self);
        Box::pin(async move {
            *this.asked.lock() += 1;
            if *this.asked.lock() > this.silent_after {
                return Err(FetchError::Refused("it is gone".to_owned()));
            }
            let piece = this.store.piece(wanted, position).await?;
            let mut piece = piece.ok_or_else(|| FetchError::Refused("there is none".to_owned()))?;
            let mut bytes = piece.bytes.to_vec();
            bytes.truncate(this.piece_bytes);
            if this.garbles
                && let Some(byte) = bytes.last_mut()
            {
                *byte ^= 1;
            }
            piece.bytes = Bytes::from(bytes);
            Ok(piece)
        })
    }
}

async fn other(image: &MetadataImage, silent_after: usize, garbles: bool) -> Arc<Other> {
    let store = Store::new(disk().1, dir());
    let written = store.write(Arc::new(image.clone()), NOW).await;
    written.expect("written");
    Arc::new(Other {
        store,
        piece_bytes: 100,
        asked: Mutex::new(0),
        silent_after,
        garbles,
    })
}

async fn take_over(store: &Arc<Store>, other: &Arc<Other>, start: Offset) -> bool {
    let fetcher = Fetcher::new(Arc::clone(store), Arc::new(Arc::clone(other)));
    fetcher
        .has_until(NodeId::new(2), start, Arc::default(), NOW)
        .await
}

#[tokio::test]
async fn a_checkpoint_comes_in_pieces_and_is_there_only_once_it_is_whole() {
    let (_, image) = images();
    let end = image.next_offset();
    let whole = other(&image, usize::MAX, false).await;
    let store = Store::new(disk().1, dir());
    assert!(take_over(&store, &whole, end).await);
    assert!(*whole.asked.lock() > 3, "it is larger than three pieces");
    let found = store.newest().await.expect("read").expect("there is one");
    assert_eq!(found, image);
    // Nobody is asked for what is there.
    let asked = *whole.asked.lock();
    assert!(take_over(&store, &whole, end).await);
    assert_eq!(*whole.asked.lock(), asked);

    for (silent_after, garbles, start) in [
        (2, false, end),
        (usize::MAX, true, end),
        (usize::MAX, false, end.plus(1)),
        (0, false, end),
    ] {
        let broken = other(&image, silent_after, garbles).await;
        let store = Store::new(disk().1, dir());
        assert!(!take_over(&store, &broken, start).await);
        assert_eq!(store.newest().await.expect("read"), None);
        let left = store.disk.list(&dir()).expect("listed");
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn what_the_image_has_already_is_written_down_and_not_asked_for() {
    let (_, image) = images();
    let nobody = other(&image, 0, false).await;
    let store = Store::new(disk().1, dir());
    let fetcher = Fetcher::new(Arc::clone(&store), Arc::new(nobody));
    let own = Arc::new(image.clone());
    let start = image.next_offset();
    assert!(fetcher.has_until(NodeId::new(2), start, own, NOW).await);
    assert_eq!(store.newest().await.expect("read"), Some(image));
}

#[tokio::test]
async fn a_power_cut_at_any_step_of_a_fetch_leaves_no_checkpoint_or_the_whole_one() {
    let (_, image) = images();
    let mut stops = 0;
    for stop in 1.. {
        let (disk, shared) = disk();
        let store = Store::new(shared, dir());
        let source = other(&image, usize::MAX, false).await;
        disk.stop_at(disk.steps() + stop);
        let has = take_over(&store, &source, image.next_offset()).await;
        let finished = !disk.is_stopped();
        disk.power_cut(stop);
        let store = Store::new(disk.shared(), dir());
        let found = store.open().await.expect("read");
        assert!(found.is_none() || found.as_ref() == Some(&image));
        assert!(
            !has || found.is_some(),
            "what was said to be durable is there"
        );
        if finished {
            stops = stop;
            break;
        }
    }
    assert!(stops > 4, "it was stopped at {stops} steps");
}
