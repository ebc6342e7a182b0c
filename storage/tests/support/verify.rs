//! Reads a partition's directory as Kafka's tools do, independently of the log's own code paths,
//! and says what is wrong with it.

use std::path::Path;

use odradek_protocol::batch::{BatchHeader, BatchIter, verify_crc};
use odradek_storage::disk::Disk;

/// Everything that is wrong with the segments and indexes in a directory.
pub fn faults(disk: &dyn Disk, dir: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for entry in disk.list(dir).unwrap() {
        if let Some(base) = entry.name.strip_suffix(".log") {
            segment_faults(disk, dir, base, &mut faults);
        }
    }
    faults
}

fn segment_faults(disk: &dyn Disk, dir: &Path, name: &str, faults: &mut Vec<String>) {
    let read = |suffix: &str| disk.read_file(&dir.join(format!("{name}{suffix}")), 1 << 30);
    let base: i64 = name.parse().unwrap();
    let log = read(".log").unwrap();
    let mut batches: Vec<(usize, BatchHeader)> = Vec::new();
    let mut position = 0;
    let mut iter = BatchIter::new(&log);
    for batch in iter.by_ref() {
        let batch = batch.unwrap();
        if let Err(error) = verify_crc(&batch.header, batch.bytes) {
            faults.push(format!("{name}.log at {position}: {error}"));
        }
        batches.push((position, batch.header));
        position += batch.bytes.len();
    }
    if !iter.rest().is_empty() {
        faults.push(format!("{name}.log: {} bytes left over", iter.rest().len()));
    }
    match read(".index") {
        Ok(index) => offset_index_faults(name, base, &index, &batches, faults),
        Err(error) => faults.push(format!("{name}.index: {error}")),
    }
    match read(".timeindex") {
        Ok(index) => time_index_faults(name, base, &index, &batches, faults),
        Err(error) => faults.push(format!("{name}.timeindex: {error}")),
    }
}

fn offset_index_faults(
    name: &str,
    base: i64,
    index: &[u8],
    batches: &[(usize, BatchHeader)],
    faults: &mut Vec<String>,
) {
    let (entries, rest) = index.as_chunks::<8>();
    if !rest.is_empty() {
        faults.push(format!("{name}.index has a torn entry"));
    }
    let mut last = -1;
    for entry in entries {
        let offset = base + i64::from(i32::from_be_bytes(entry[..4].try_into().unwrap()));
        let position = i32::from_be_bytes(entry[4..].try_into().unwrap()) as usize;
        let batch = batches.iter().find(|(at, _)| *at == position);
        if batch.is_none_or(|(_, header)| header.last_offset().get() != offset) {
            faults.push(format!("{name}.index: {offset} is not at {position}"));
        }
        if offset <= last {
            faults.push(format!("{name}.index: {offset} after {last}"));
        }
        last = offset;
    }
}

fn time_index_faults(
    name: &str,
    base: i64,
    index: &[u8],
    batches: &[(usize, BatchHeader)],
    faults: &mut Vec<String>,
) {
    let (entries, rest) = index.as_chunks::<12>();
    if !rest.is_empty() {
        faults.push(format!("{name}.timeindex has a torn entry"));
    }
    let mut last = (-1, -1);
    for entry in entries {
        let timestamp = i64::from_be_bytes(entry[..8].try_into().unwrap());
        let offset = base + i64::from(i32::from_be_bytes(entry[8..].try_into().unwrap()));
        let batch = batches
            .iter()
            .find(|(_, header)| header.last_offset().get() == offset);
        if batch.is_none_or(|(_, header)| header.max_timestamp.get() != timestamp) {
            faults.push(format!("{name}.timeindex: {timestamp} is not at {offset}"));
        }
        let older = batches
            .iter()
            .take_while(|(_, header)| header.last_offset().get() <= offset);
        if older.map(|(_, header)| header.max_timestamp.get()).max() > Some(timestamp) {
            faults.push(format!("{name}.timeindex: {timestamp} is not the largest"));
        }
        if timestamp <= last.0 || offset < last.1 {
            faults.push(format!("{name}.timeindex: {timestamp} after {}", last.0));
        }
        last = (timestamp, offset);
    }
}
