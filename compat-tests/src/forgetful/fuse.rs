//! Mounts a [`Store`] through FUSE, so that a real process can run on it and lose its power.
//!
//! The kernel's write-back cache stays off: every write reaches the store when the system call
//! returns, and only `fsync` makes it durable. Absent on purpose: links, extended attributes,
//! permissions and times, which no broker's data directory needs.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::store::{Attributes, BLOCK_BYTES, CutReport, Fault, Refusal, Store};

/// Only this mount changes the store, so the kernel may remember what it has seen.
const ATTRIBUTES_VALID: Duration = Duration::from_secs(3600);

/// How long the threads that serve a mount may take to learn of its end.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(30);

/// A mounted forgetful file system; unmounted when dropped.
pub struct ForgetfulMount {
    store: Arc<Mutex<Store>>,
    mount_point: PathBuf,
    session: Option<BackgroundSession>,
}

impl ForgetfulMount {
    /// Mounts an empty store of `capacity_bytes` on the existing directory `mount_point`.
    pub fn new(mount_point: &Path, capacity_bytes: u64) -> io::Result<Self> {
        let mut mount = Self {
            store: Arc::new(Mutex::new(Store::new(capacity_bytes))),
            mount_point: mount_point.to_owned(),
            session: None,
        };
        mount.mount()?;
        Ok(mount)
    }

    /// The directory it is mounted on.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Makes every further operation fail and freezes what is durable. Processes on the mount
    /// must be killed before [`Self::power_on`].
    pub fn power_off(&self) {
        self.store().power_off();
    }

    /// Decides from `seed` what survives and mounts the result again. Nothing may still have the
    /// mount open.
    pub fn power_on(&mut self, seed: u64) -> io::Result<CutReport> {
        self.unmount()?;
        let report = self.store().cut(seed);
        self.mount()?;
        Ok(report)
    }

    /// Adds a fault to come.
    pub fn inject(&self, fault: Fault) {
        self.store().inject(fault);
    }

    /// Forgets all faults to come.
    pub fn clear_faults(&self) {
        self.store().clear_faults();
    }

    /// Changes how many bytes fit.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.store().set_capacity(capacity_bytes);
    }

    /// Bytes in use and the most that fit.
    pub fn usage(&self) -> (u64, u64) {
        self.store().usage()
    }

    /// Successful syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.store().syncs()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mount(&mut self) -> io::Result<()> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("forgetful".into()),
            MountOption::NoAtime,
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        config.n_threads = Some(2);
        let adapter = Adapter {
            store: Arc::clone(&self.store),
        };
        self.session = Some(fuser::spawn_mount(adapter, &self.mount_point, &config)?);
        Ok(())
    }

    fn unmount(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let (done, heard) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = done.send(session.umount_and_join());
        });
        match heard.recv_timeout(UNMOUNT_PATIENCE) {
            // One of the threads that serve the mount may learn of its end from the kernel first.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            Ok(result) => result,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the mount is not given back, as by a process that still has a file of it open",
            )),
        }
    }
}

impl Drop for ForgetfulMount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("cannot unmount {}: {error}", self.mount_point.display());
        }
    }
}

struct Adapter {
    store: Arc<Mutex<Store>>,
}

impl Adapter {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::NotFound => Errno::ENOENT,
        Refusal::Exists => Errno::EEXIST,
        Refusal::NotADirectory => Errno::ENOTDIR,
        Refusal::IsADirectory => Errno::EISDIR,
        Refusal::NotEmpty => Errno::ENOTEMPTY,
        Refusal::NoSpace => Errno::ENOSPC,
        Refusal::Io => Errno::EIO,
    }
}

fn file_attr(attributes: Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.inode),
        size: attributes.size,
        blocks: attributes.size.div_ceil(512),
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: if attributes.is_directory {
            FileType::Directory
        } else {
            FileType::RegularFile
        },
        perm: if attributes.is_directory {
            0o755
        } else {
            0o644
        },
        nlink: if attributes.is_directory { 2 } else { 1 },
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

fn utf8(name: &OsStr) -> Result<&str, Errno> {
    name.to_str().ok_or(Errno::EINVAL)
}

fn send_entry(reply: ReplyEntry, result: Result<Attributes, Errno>) {
    match result {
        Ok(attributes) => {
            reply.entry(&ATTRIBUTES_VALID, &file_attr(attributes), Generation(0));
        }
        Err(error) => reply.error(error),
    }
}

fn send_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Adapter {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = utf8(name).and_then(|name| self.store().lookup(parent.0, name).map_err(errno));
        send_entry(reply, result);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.store().attributes(ino.0) {
            Ok(attributes) => reply.attr(&ATTRIBUTES_VALID, &file_attr(attributes)),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut store = self.store();
        let result = match size {
            Some(size) => store.truncate(ino.0, size),
            None => Ok(()),
        };
        match result.and_then(|()| store.attributes(ino.0)) {
            Ok(attributes) => reply.attr(&ATTRIBUTES_VALID, &file_attr(attributes)),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let result =
            utf8(name).and_then(|name| self.store().create(parent.0, name, true).map_err(errno));
        send_entry(reply, result);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result =
            utf8(name).and_then(|name| self.store().remove(parent.0, name, false).map_err(errno));
        send_empty(reply, result);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result =
            utf8(name).and_then(|name| self.store().remove(parent.0, name, true).map_err(errno));
        send_empty(reply, result);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let result = utf8(name).and_then(|from| {
            let to = utf8(newname)?;
            self.store()
                .rename(parent.0, from, newparent.0, to)
                .map_err(errno)
        });
        send_empty(reply, result);
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.store().open(ino.0) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let result = utf8(name).and_then(|name| {
            let mut store = self.store();
            let attributes = store.create(parent.0, name, false).map_err(errno)?;
            store.open(attributes.inode).map_err(errno)?;
            Ok(attributes)
        });
        match result {
            Ok(attributes) => reply.created(
                &ATTRIBUTES_VALID,
                &file_attr(attributes),
                Generation(0),
                FileHandle(0),
                FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let result = self.store().read(ino.0, offset, size as usize);
        match result {
            Ok(bytes) => reply.data(&bytes),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let result = self.store().write(ino.0, offset, data);
        match result {
            Ok(()) => reply.written(data.len() as u32),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.store().close(ino.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.store().sync_file(ino.0).map_err(errno);
        send_empty(reply, result);
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.store().sync_directory(ino.0).map_err(errno);
        send_empty(reply, result);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.store().list(ino.0) {
            Ok(entries) => entries,
            Err(refusal) => return reply.error(errno(refusal)),
        };
        let dots = [".", ".."].map(|name| (name.to_owned(), ino, FileType::Directory));
        let named = entries.into_iter().map(|(name, attributes)| {
            let attr = file_attr(attributes);
            (name, attr.ino, attr.kind)
        });
        let all = dots.into_iter().chain(named).enumerate();
        for (index, (name, ino, kind)) in all.skip(offset as usize) {
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let (used, capacity) = self.store().usage();
        let blocks = capacity / BLOCK_BYTES as u64;
        let free = capacity.saturating_sub(used) / BLOCK_BYTES as u64;
        let block_bytes = BLOCK_BYTES as u32;
        reply.statfs(
            blocks,
            free,
            free,
            1 << 20,
            1 << 20,
            block_bytes,
            255,
            block_bytes,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write as _;

    #[test]
    fn a_mounted_store_keeps_what_was_synced_and_refuses_everything_while_off() {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = ForgetfulMount::new(directory.path(), 1 << 26).unwrap();
        let path = directory.path().join("segment");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        file.sync_data().unwrap();
        fs::File::open(directory.path())
            .unwrap()
            .sync_all()
            .unwrap();
        file.write_all(&[2; 100_000]).unwrap();
        mount.power_off();
        assert!(file.write_all(b"x").is_err());
        assert!(file.sync_data().is_err());
        drop(file);
        mount.power_on(3).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() >= 100_000);
        assert!(bytes[..100_000].iter().all(|byte| *byte == 1));
    }
}
