//! The model behind the forgetful file system: inodes, names, and an undo log of everything that
//! is not durable yet. No I/O, no clock, no kernel types.
//!
//! Invariant: replaying every undo entry gives exactly the state that was last synced.

mod file;

use std::collections::{BTreeMap, HashMap, HashSet};

use file::{File, block_pieces};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Bytes of a block: the unit that the undo log remembers.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a sector: the unit that a torn block mixes.
pub const SECTOR_BYTES: usize = 512;
/// Inode of the root directory.
pub const ROOT: u64 = 1;

/// Why an operation was refused, by the errno a kernel would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `ENOENT`.
    NotFound,
    /// `EEXIST`.
    Exists,
    /// `ENOTDIR`.
    NotADirectory,
    /// `EISDIR`.
    IsADirectory,
    /// `ENOTEMPTY`.
    NotEmpty,
    /// `ENOSPC`: the store is full, or the test asked for it.
    NoSpace,
    /// `EIO`: the power is off, or the test asked for it.
    Io,
}

/// The operations that a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Writes of file data.
    Write,
    /// `fsync` and `fdatasync` of files.
    SyncFile,
    /// `fsync` of directories.
    SyncDirectory,
    /// Creation of files and directories.
    Create,
    /// Renames.
    Rename,
}

/// A fault to come: after `skip` operations of `kind` whose path contains `path_part`, the next
/// `times` fail with `refusal`.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which operations.
    pub kind: FaultKind,
    /// Only files whose path contains this text; empty for all.
    pub path_part: String,
    /// Operations that still succeed first.
    pub skip: u64,
    /// Operations that fail then.
    pub times: u64,
    /// How they fail.
    pub refusal: Refusal,
}

/// What `stat` tells of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Bytes of a file.
    pub size: u64,
}

#[derive(Debug)]
enum Node {
    File(File),
    Directory(BTreeMap<String, u64>),
}

/// One change of names: `directory[name]` was `before`.
#[derive(Debug)]
struct NameChange {
    directory: u64,
    name: String,
    before: Option<u64>,
}

/// Changes of names that happen together or not at all.
#[derive(Debug)]
struct NameTransaction {
    changes: Vec<NameChange>,
}

/// What a cut did, for the test's output.
#[derive(Debug, Default, Clone, Copy)]
pub struct CutReport {
    /// Blocks that fell back to their durable content.
    pub blocks_forgotten: usize,
    /// Blocks that kept their unsynced content.
    pub blocks_kept: usize,
    /// Blocks that mix both.
    pub blocks_torn: usize,
    /// Changes of names undone.
    pub names_undone: usize,
}

/// A whole file system in memory.
#[derive(Debug)]
pub struct Store {
    nodes: HashMap<u64, Node>,
    parents: HashMap<u64, (u64, String)>,
    open_count: HashMap<u64, u64>,
    next_inode: u64,
    pending_names: Vec<NameTransaction>,
    powered: bool,
    capacity_bytes: u64,
    used_bytes: u64,
    faults: Vec<Fault>,
    syncs: u64,
}

impl Store {
    /// An empty file system that holds at most `capacity_bytes` of file blocks.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            nodes: HashMap::from([(ROOT, Node::Directory(BTreeMap::new()))]),
            parents: HashMap::new(),
            open_count: HashMap::new(),
            next_inode: ROOT + 1,
            pending_names: Vec::new(),
            powered: true,
            capacity_bytes,
            used_bytes: 0,
            faults: Vec::new(),
            syncs: 0,
        }
    }

    /// Switches the power off: from now on everything fails with `EIO`, and nothing more becomes
    /// durable.
    pub fn power_off(&mut self) {
        self.powered = false;
    }

    /// Successful syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.syncs
    }

    /// Bytes of blocks in use and the most that there may be.
    pub fn usage(&self) -> (u64, u64) {
        (self.used_bytes, self.capacity_bytes)
    }

    /// Changes the most bytes that there may be; less than is in use makes every new block fail.
    pub fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    /// Adds a fault to come.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Forgets all faults to come.
    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Decides from `seed` what survives of all that is not durable, and switches the power on.
    pub fn cut(&mut self, seed: u64) -> CutReport {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut report = CutReport::default();

        let keep = rng.random_range(0..=self.pending_names.len());
        for transaction in self
            .pending_names
            .drain(..)
            .skip(keep)
            .rev()
            .collect::<Vec<_>>()
        {
            report.names_undone += transaction.changes.len();
            for change in transaction.changes.into_iter().rev() {
                if let Some(Node::Directory(names)) = self.nodes.get_mut(&change.directory) {
                    match change.before {
                        Some(inode) => {
                            names.insert(change.name.clone(), inode);
                            self.parents.insert(inode, (change.directory, change.name));
                        }
                        None => {
                            names.remove(&change.name);
                        }
                    }
                }
            }
        }

        let mut inodes: Vec<u64> = self.nodes.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            if let Some(Node::File(file)) = self.nodes.get_mut(&inode) {
                file.cut(&mut rng, &mut report);
            }
        }
        self.open_count.clear();
        self.collect_unreachable();
        self.faults.clear();
        self.powered = true;
        report
    }

    /// Finds `name` in a directory.
    pub fn lookup(&self, directory: u64, name: &str) -> Result<Attributes, Refusal> {
        self.check_power()?;
        let inode = *self.names(directory)?.get(name).ok_or(Refusal::NotFound)?;
        self.attributes(inode)
    }

    /// What `stat` tells.
    pub fn attributes(&self, inode: u64) -> Result<Attributes, Refusal> {
        self.check_power()?;
        match self.nodes.get(&inode).ok_or(Refusal::NotFound)? {
            Node::File(file) => Ok(Attributes {
                inode,
                is_directory: false,
                size: file.size,
            }),
            Node::Directory(_) => Ok(Attributes {
                inode,
                is_directory: true,
                size: 0,
            }),
        }
    }

    /// Names and attributes of a directory, in order.
    pub fn list(&self, directory: u64) -> Result<Vec<(String, Attributes)>, Refusal> {
        self.check_power()?;
        self.names(directory)?
            .iter()
            .map(|(name, inode)| Ok((name.clone(), self.attributes(*inode)?)))
            .collect()
    }

    /// Makes an empty file or directory.
    pub fn create(
        &mut self,
        directory: u64,
        name: &str,
        is_directory: bool,
    ) -> Result<Attributes, Refusal> {
        self.check_power()?;
        self.check_fault(FaultKind::Create, directory, Some(name))?;
        if self.names(directory)?.contains_key(name) {
            return Err(Refusal::Exists);
        }
        let inode = self.next_inode;
        self.next_inode += 1;
        let node = if is_directory {
            Node::Directory(BTreeMap::new())
        } else {
            Node::File(File::default())
        };
        self.nodes.insert(inode, node);
        let change = self.set_name(directory, name, Some(inode))?;
        self.pending_names.push(NameTransaction {
            changes: vec![change],
        });
        self.attributes(inode)
    }

    /// Removes a file's name, or an empty directory.
    pub fn remove(
        &mut self,
        directory: u64,
        name: &str,
        is_directory: bool,
    ) -> Result<(), Refusal> {
        self.check_power()?;
        let inode = *self.names(directory)?.get(name).ok_or(Refusal::NotFound)?;
        match self.nodes.get(&inode).ok_or(Refusal::NotFound)? {
            Node::File(_) if is_directory => return Err(Refusal::NotADirectory),
            Node::Directory(_) if !is_directory => return Err(Refusal::IsADirectory),
            Node::Directory(names) if !names.is_empty() => return Err(Refusal::NotEmpty),
            Node::File(_) | Node::Directory(_) => {}
        }
        let change = self.set_name(directory, name, None)?;
        self.pending_names.push(NameTransaction {
            changes: vec![change],
        });
        Ok(())
    }

    /// Moves a name, replacing what stands at the new one.
    pub fn rename(
        &mut self,
        from_directory: u64,
        from: &str,
        to_directory: u64,
        to: &str,
    ) -> Result<(), Refusal> {
        self.check_power()?;
        self.check_fault(FaultKind::Rename, from_directory, Some(from))?;
        let inode = *self
            .names(from_directory)?
            .get(from)
            .ok_or(Refusal::NotFound)?;
        if let Some(target) = self.names(to_directory)?.get(to)
            && let Some(Node::Directory(names)) = self.nodes.get(target)
            && !names.is_empty()
        {
            return Err(Refusal::NotEmpty);
        }
        let removed = self.set_name(from_directory, from, None)?;
        let added = self.set_name(to_directory, to, Some(inode))?;
        self.pending_names.push(NameTransaction {
            changes: vec![removed, added],
        });
        Ok(())
    }

    /// Counts an open handle, so that an unlinked file lives until it is closed.
    pub fn open(&mut self, inode: u64) -> Result<(), Refusal> {
        self.check_power()?;
        if !self.nodes.contains_key(&inode) {
            return Err(Refusal::NotFound);
        }
        *self.open_count.entry(inode).or_insert(0) += 1;
        Ok(())
    }

    /// Gives an open handle back.
    pub fn close(&mut self, inode: u64) {
        if let Some(count) = self.open_count.get_mut(&inode) {
            *count = count.saturating_sub(1);
        }
    }

    /// Reads up to `length` bytes; fewer at the end of the file.
    pub fn read(&self, inode: u64, offset: u64, length: usize) -> Result<Vec<u8>, Refusal> {
        self.check_power()?;
        let file = self.file(inode)?;
        let end = file.size.min(offset.saturating_add(length as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut out = vec![0u8; (end - offset) as usize];
        for (block, within, range) in block_pieces(offset, out.len()) {
            if let Some(content) = file.blocks.get(&block) {
                let length = range.len();
                out[range].copy_from_slice(&content[within..within + length]);
            }
        }
        Ok(out)
    }

    /// Writes bytes; not durable until the file is synced.
    pub fn write(&mut self, inode: u64, offset: u64, data: &[u8]) -> Result<(), Refusal> {
        self.check_power()?;
        self.check_fault(FaultKind::Write, inode, None)?;
        let (used, capacity) = (self.used_bytes, self.capacity_bytes);
        let file = self.file_mut(inode)?;
        let new_blocks = block_pieces(offset, data.len())
            .filter(|(block, _, _)| !file.blocks.contains_key(block))
            .count() as u64
            * BLOCK_BYTES as u64;
        if new_blocks > 0 && used + new_blocks > capacity {
            return Err(Refusal::NoSpace);
        }
        for (block, within, range) in block_pieces(offset, data.len()) {
            file.remember(block);
            let content = file
                .blocks
                .entry(block)
                .or_insert_with(|| Box::new([0; BLOCK_BYTES]));
            content[within..within + range.len()].copy_from_slice(&data[range]);
        }
        file.set_size(file.size.max(offset + data.len() as u64));
        self.used_bytes += new_blocks;
        Ok(())
    }

    /// Cuts or extends a file; not durable until the file is synced.
    pub fn truncate(&mut self, inode: u64, size: u64) -> Result<(), Refusal> {
        self.check_power()?;
        let file = self.file_mut(inode)?;
        let mut freed = 0;
        if size < file.size {
            let first_gone = size.div_ceil(BLOCK_BYTES as u64);
            let gone: Vec<u64> = file
                .blocks
                .keys()
                .copied()
                .filter(|block| *block >= first_gone)
                .collect();
            for block in gone {
                file.remember(block);
                file.blocks.remove(&block);
                freed += BLOCK_BYTES as u64;
            }
            let within = (size % BLOCK_BYTES as u64) as usize;
            let last = size / BLOCK_BYTES as u64;
            if within > 0 && file.blocks.contains_key(&last) {
                file.remember(last);
                if let Some(content) = file.blocks.get_mut(&last) {
                    content[within..].fill(0);
                }
            }
        }
        file.set_size(size);
        self.used_bytes = self.used_bytes.saturating_sub(freed);
        Ok(())
    }

    /// Makes a file's bytes and size durable.
    pub fn sync_file(&mut self, inode: u64) -> Result<(), Refusal> {
        self.check_power()?;
        self.check_fault(FaultKind::SyncFile, inode, None)?;
        let file = self.file_mut(inode)?;
        file.undo.clear();
        file.durable_size = None;
        self.syncs += 1;
        Ok(())
    }

    /// Makes a directory's names durable.
    pub fn sync_directory(&mut self, directory: u64) -> Result<(), Refusal> {
        self.check_power()?;
        self.check_fault(FaultKind::SyncDirectory, directory, None)?;
        // A rename between two directories is one change: syncing either makes it durable.
        self.pending_names.retain(|transaction| {
            !transaction
                .changes
                .iter()
                .any(|change| change.directory == directory)
        });
        self.collect_unreachable();
        Ok(())
    }

    fn check_power(&self) -> Result<(), Refusal> {
        if self.powered {
            Ok(())
        } else {
            Err(Refusal::Io)
        }
    }

    fn check_fault(
        &mut self,
        kind: FaultKind,
        inode: u64,
        name: Option<&str>,
    ) -> Result<(), Refusal> {
        if self.faults.is_empty() {
            return Ok(());
        }
        let mut path = self.path(inode);
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        for fault in &mut self.faults {
            if fault.kind != kind || fault.times == 0 || !path.contains(&fault.path_part) {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            fault.times -= 1;
            return Err(fault.refusal);
        }
        Ok(())
    }

    fn path(&self, inode: u64) -> String {
        let mut parts = Vec::new();
        let mut at = inode;
        // Bounded by the number of inodes: a cycle of names cannot be made.
        for _ in 0..self.nodes.len() {
            let Some((parent, name)) = self.parents.get(&at) else {
                break;
            };
            parts.push(name.as_str());
            at = *parent;
        }
        parts.reverse();
        parts.join("/")
    }

    fn names(&self, directory: u64) -> Result<&BTreeMap<String, u64>, Refusal> {
        match self.nodes.get(&directory).ok_or(Refusal::NotFound)? {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(Refusal::NotADirectory),
        }
    }

    fn set_name(
        &mut self,
        directory: u64,
        name: &str,
        inode: Option<u64>,
    ) -> Result<NameChange, Refusal> {
        let Some(Node::Directory(names)) = self.nodes.get_mut(&directory) else {
            return Err(Refusal::NotADirectory);
        };
        let before = match inode {
            Some(inode) => {
                self.parents.insert(inode, (directory, name.to_owned()));
                names.insert(name.to_owned(), inode)
            }
            None => names.remove(name),
        };
        Ok(NameChange {
            directory,
            name: name.to_owned(),
            before,
        })
    }

    fn file(&self, inode: u64) -> Result<&File, Refusal> {
        match self.nodes.get(&inode).ok_or(Refusal::NotFound)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(Refusal::IsADirectory),
        }
    }

    fn file_mut(&mut self, inode: u64) -> Result<&mut File, Refusal> {
        match self.nodes.get_mut(&inode).ok_or(Refusal::NotFound)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(Refusal::IsADirectory),
        }
    }

    /// Drops inodes that no name, no undo entry and no open handle can reach.
    fn collect_unreachable(&mut self) {
        let mut reachable = HashSet::from([ROOT]);
        let mut todo = vec![ROOT];
        let undo = self
            .pending_names
            .iter()
            .flat_map(|transaction| &transaction.changes);
        todo.extend(undo.filter_map(|change| change.before));
        todo.extend(
            self.open_count
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(i, _)| *i),
        );
        while let Some(inode) = todo.pop() {
            reachable.insert(inode);
            if let Some(Node::Directory(names)) = self.nodes.get(&inode) {
                todo.extend(
                    names
                        .values()
                        .copied()
                        .filter(|child| !reachable.contains(child)),
                );
            }
        }
        self.nodes.retain(|inode, _| reachable.contains(inode));
        self.parents.retain(|inode, _| reachable.contains(inode));
        self.used_bytes = self
            .nodes
            .values()
            .map(|node| match node {
                Node::File(file) => (file.blocks.len() * BLOCK_BYTES) as u64,
                Node::Directory(_) => 0,
            })
            .sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_with_file() -> (Store, u64) {
        let mut store = Store::new(1 << 30);
        let inode = store.create(ROOT, "log", false).unwrap().inode;
        store.sync_directory(ROOT).unwrap();
        (store, inode)
    }

    #[test]
    fn synced_bytes_survive_every_cut() {
        for seed in 0..200 {
            let (mut store, inode) = store_with_file();
            store.write(inode, 0, &[7; 10_000]).unwrap();
            store.sync_file(inode).unwrap();
            store.write(inode, 10_000, &[8; 10_000]).unwrap();
            store.power_off();
            store.cut(seed);
            assert_eq!(
                store.read(inode, 0, 10_000).unwrap(),
                vec![7; 10_000],
                "seed {seed}"
            );
        }
    }

    #[test]
    fn unsynced_bytes_are_lost_by_some_cuts_and_kept_by_others() {
        let (mut lost, mut kept) = (0, 0);
        for seed in 0..200 {
            let (mut store, inode) = store_with_file();
            store.write(inode, 0, &[8; 4096]).unwrap();
            store.power_off();
            store.cut(seed);
            match store.read(inode, 0, 4096).unwrap().as_slice() {
                [] => lost += 1,
                bytes if bytes.iter().all(|byte| *byte == 8) => kept += 1,
                _ => {}
            }
        }
        assert!(lost > 10 && kept > 10, "lost {lost}, kept {kept}");
    }

    #[test]
    fn a_name_is_durable_only_after_its_directory_is_synced() {
        let mut seen = HashSet::new();
        for seed in 0..100 {
            let mut store = Store::new(1 << 20);
            let inode = store.create(ROOT, "new", false).unwrap().inode;
            store.write(inode, 0, b"x").unwrap();
            store.sync_file(inode).unwrap();
            store.power_off();
            store.cut(seed);
            seen.insert(store.lookup(ROOT, "new").is_ok());
        }
        assert_eq!(seen.len(), 2, "some cuts must lose the name, some keep it");
    }

    #[test]
    fn an_undone_rename_brings_back_both_names_with_their_content() {
        for seed in 0..100 {
            let (mut store, old) = store_with_file();
            store.write(old, 0, b"old").unwrap();
            store.sync_file(old).unwrap();
            let new = store.create(ROOT, "log.tmp", false).unwrap().inode;
            store.write(new, 0, b"new").unwrap();
            store.sync_file(new).unwrap();
            store.sync_directory(ROOT).unwrap();
            store.rename(ROOT, "log.tmp", ROOT, "log").unwrap();
            store.power_off();
            store.cut(seed);
            let inode = store.lookup(ROOT, "log").unwrap().inode;
            let content = store.read(inode, 0, 3).unwrap();
            match store.lookup(ROOT, "log.tmp") {
                Ok(_) => assert_eq!(content, b"old"),
                Err(_) => assert_eq!(content, b"new"),
            }
        }
    }

    #[test]
    fn a_full_store_refuses_new_blocks_and_still_syncs() {
        let mut store = Store::new(8192);
        let inode = store.create(ROOT, "log", false).unwrap().inode;
        store.write(inode, 0, &[1; 8192]).unwrap();
        assert_eq!(store.write(inode, 8192, &[1]), Err(Refusal::NoSpace));
        store.sync_file(inode).unwrap();
        store.truncate(inode, 0).unwrap();
        store.write(inode, 0, &[2; 4096]).unwrap();
    }

    #[test]
    fn a_fault_fails_only_what_it_names_and_only_as_often() {
        let (mut store, inode) = store_with_file();
        store.inject(Fault {
            kind: FaultKind::SyncFile,
            path_part: "log".into(),
            skip: 1,
            times: 1,
            refusal: Refusal::Io,
        });
        store.sync_file(inode).unwrap();
        assert_eq!(store.sync_file(inode), Err(Refusal::Io));
        store.sync_file(inode).unwrap();
    }
}
