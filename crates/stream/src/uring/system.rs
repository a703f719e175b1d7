//! Reads through io_uring: one thread has several reads in progress, and wakes once for all that have ended.
//!
//! This is the only `unsafe` code of file reading. The kernel writes into the memory of a block
//! asynchronously. The queue therefore owns every block whose read is in progress, and returns it when the
//! read has ended.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::{Ended, RETRY_INTERVAL};
use crate::ReadFailure;
use crate::file::{Progress, READ_BYTES_MAX};
use crate::queue::Work;

/// A queue of reads of one file.
///
/// # Invariants
/// - The kernel writes only into blocks of `under_way`. The memory of these blocks is not moved or freed
///   until their read has ended.
pub(crate) struct Uring {
    queue: IoUring,
    file: File,
    /// Reads in progress. The number of a read is its index.
    under_way: Vec<Option<Read>>,
    n_under_way: usize,
}

struct Read {
    work: Work,
    progress: Progress,
    /// Bytes of the newest request.
    asked: usize,
}

/// Maximum attempts to wait for the remaining reads when the queue is dropped.
const N_RETRIES: usize = 1000;

impl Uring {
    /// A queue for `n_reads` concurrent reads. Only the calling thread may use it.
    ///
    /// # Errors
    /// The system's error: it has no io_uring (Linux before 5.6), or refuses it to this process.
    pub(crate) fn new(file: File, n_reads: usize) -> io::Result<Self> {
        assert!(n_reads > 0, "a queue for no reads");
        let n_entries = u32::try_from(n_reads).unwrap_or(u32::MAX);
        // One thread submits and polls for completions, so the kernel need not interrupt it. Linux supports
        // these flags since 6.1.
        let for_one_thread = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(n_entries);
        let queue = for_one_thread.or_else(|_| IoUring::new(n_entries))?;
        let mut known = Probe::new();
        queue.submitter().register_probe(&mut known)?;
        if !known.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { queue, file, under_way: (0..n_reads).map(|_| None).collect(), n_under_way: 0 })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.n_under_way == self.under_way.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.n_under_way == 0
    }

    /// Adds a read. It is submitted by the next [`wait`](Self::wait).
    ///
    /// # Panics
    /// If the queue is full.
    pub(crate) fn push(&mut self, mut work: Work) {
        let at = self.under_way.iter().position(Option::is_none).expect("the queue is not full");
        let progress = Progress::new(work.block.bytes_mut().len());
        self.under_way[at] = Some(Read { work, progress, asked: 0 });
        self.n_under_way += 1;
        self.ask(at);
    }

    /// Waits until a read ends, and moves all reads that have ended to `ended`. Short and interrupted reads
    /// are continued.
    ///
    /// # Errors
    /// The system's error, perhaps temporary. Submitted reads are still in progress, and reads that have
    /// ended are in `ended`.
    pub(crate) fn wait(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        let n_before = ended.len();
        while self.n_under_way > 0 && ended.len() == n_before {
            let waited = self.queue.submit_and_wait(1);
            self.take_answers(ended);
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for all reads; `false` if the system keeps refusing to wait.
    fn drain(&mut self) -> bool {
        let mut ended = Vec::new();
        for _ in 0..N_RETRIES {
            while self.n_under_way > 0 && self.wait(&mut ended).is_ok() {}
            if self.n_under_way == 0 {
                return true;
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        false
    }

    fn take_answers(&mut self, ended: &mut Vec<Ended>) {
        loop {
            let Some(answer) = self.queue.completion().next() else { return };
            let at = answer.user_data() as usize;
            let read = self.under_way[at].as_mut().expect("an answer belongs to a read");
            let offset = read.work.offset + read.progress.done() as u64;
            // A length below 2 GiB, or a negated error number.
            let answer = match answer.result() {
                n_bytes if n_bytes >= 0 => Ok(n_bytes as usize),
                error => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
            };
            let result = match read.progress.advance(read.asked, answer) {
                Ok(()) if !read.progress.is_complete() => {
                    self.ask(at);
                    continue;
                }
                result => result.map_err(|error| ReadFailure::from((offset, error))),
            };
            let read = self.under_way[at].take().expect("it was there");
            self.n_under_way -= 1;
            ended.push((read.work, result));
        }
    }

    /// Requests the remaining bytes of a read.
    fn ask(&mut self, at: usize) {
        let read = self.under_way[at].as_mut().expect("the read is under way");
        let offset = read.work.offset + read.progress.done() as u64;
        let rest = &mut read.work.block.bytes_mut()[read.progress.done()..];
        read.asked = rest.len().min(READ_BYTES_MAX);
        let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), rest.as_mut_ptr(), read.asked as u32)
            .offset(offset)
            .build()
            .user_data(at as u64);
        self.submit(&entry);
    }

    fn submit(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry comes from `ask`: its `asked` bytes are inside a block that `under_way` owns
        // until the read has ended. No other code accesses the block meanwhile, and the file is open for as
        // long as `self`. If `self` ends before the read, the block is leaked.
        let pushed = unsafe { self.queue.submission().push(entry) };
        // There are as many entries as reads, and a read is requested again only after its result has
        // arrived.
        pushed.expect("a read has an entry");
    }
}

impl Drop for Uring {
    /// Waits for the reads in progress. If the system refuses to wait for a second, their blocks are leaked,
    /// because it may still write to them.
    fn drop(&mut self) {
        if !self.drain() {
            std::mem::forget(std::mem::take(&mut self.under_way));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;
    use crate::DIRECT_ALIGN;
    use crate::queue::{Extent, Queue};
    use refrain_kernels::PageBuf;

    const PAGE: usize = DIRECT_ALIGN;

    fn byte_at(offset: usize) -> u8 {
        (offset / 7) as u8
    }

    fn file(dir: &Path, len: usize) -> std::path::PathBuf {
        let path = dir.join("file");
        std::fs::write(&path, (0..len).map(byte_at).collect::<Vec<_>>()).unwrap();
        path
    }

    /// A queue in which one extent of `n_pages`, in blocks of `block_pages`, is wanted.
    fn wanted(n_pages: usize, block_pages: usize) -> Queue {
        let extent = Extent { offset: PAGE as u64, len: n_pages * PAGE };
        let buffers = (0..2).map(|_| PageBuf::zeroed(n_pages * PAGE).unwrap()).collect();
        let mut queue = Queue::new(vec![extent], buffers, block_pages * PAGE);
        queue.want(0);
        queue
    }

    fn uring(file: File, n_reads: usize) -> Option<Uring> {
        let uring = Uring::new(file, n_reads);
        uring.inspect_err(|error| println!("skipped: no io_uring here: {error}")).ok()
    }

    /// Reads all blocks of the queue, in any order.
    fn read_all(uring: &mut Uring, queue: &mut Queue) {
        let mut ended = Vec::new();
        loop {
            while !uring.is_full()
                && let Some(work) = queue.work()
            {
                uring.push(work);
            }
            if uring.is_idle() {
                return;
            }
            uring.wait(&mut ended).unwrap();
            assert!(!ended.is_empty());
            ended.drain(..).for_each(|(work, result)| _ = queue.done(work, result));
        }
    }

    #[test]
    fn every_block_has_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), 40 * PAGE);
        for (n_reads, block_pages) in [(1, 3), (4, 1), (7, 2), (64, 39)] {
            let Some(mut uring) = uring(File::open(&path).unwrap(), n_reads) else { return };
            for _ in 0..3 {
                let mut queue = wanted(39, block_pages);
                read_all(&mut uring, &mut queue);
                let pages = queue.take().unwrap().unwrap();
                let bytes = pages.bytes().iter().enumerate();
                assert!(bytes.into_iter().all(|(i, &byte)| byte == byte_at(PAGE + i)), "{n_reads}");
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_or_cannot_be_read_is_an_error_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), 20 * PAGE + 100);
        let Some(mut short) = uring(File::open(&path).unwrap(), 4) else { return };
        let not_readable = OpenOptions::new().write(true).open(&path).unwrap();
        let mut refused = uring(not_readable, 4).unwrap();
        let ebadf = io::Error::from_raw_os_error(9).kind();
        // The file ends at the last whole page: a read of the bytes after it returns the same bytes each
        // time.
        let short = (&mut short, 20 * PAGE as u64, io::ErrorKind::UnexpectedEof);
        for (uring, place, expected) in [short, (&mut refused, PAGE as u64, ebadf)] {
            let mut queue = wanted(39, 39);
            read_all(uring, &mut queue);
            match queue.take().unwrap() {
                Err(ReadFailure::Read { offset, kind, .. }) => assert_eq!((offset, kind), (place, expected)),
                other => panic!("{:?}", other.map(|_| ())),
            }
        }
    }

    #[test]
    fn what_is_under_way_when_it_ends_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), 40 * PAGE);
        for n_pushed in 0..=8 {
            let Some(mut uring) = uring(File::open(&path).unwrap(), 8) else { return };
            let mut queue = wanted(39, 4);
            for _ in 0..n_pushed {
                uring.push(queue.work().unwrap());
            }
            // Some reads are submitted, others are not.
            let mut ended = Vec::new();
            if n_pushed % 2 == 0 {
                uring.wait(&mut ended).unwrap();
            }
            // As in `drop`.
            assert!(uring.drain() && uring.is_idle(), "{n_pushed}");
            assert!(uring.under_way.iter().all(Option::is_none));
        }
    }
}
