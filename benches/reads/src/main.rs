//! `reads FILE MIB ROUNDS [MEMORY_MIB]`: reads the first MIB of a file past the page cache, by threads and by
//! io_uring, with several block sizes and numbers of concurrent reads. The cells take turns. Prints medians, the best,
//! and the processor time. Blocks rotate through MEMORY_MIB of memory, like those of a model; without MEMORY_MIB, each
//! concurrent read has one place.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

const BLOCKS: [usize; 3] = [256 << 10, 1 << 20, 4 << 20];
const AT_A_TIME: [usize; 6] = [1, 2, 4, 8, 16, 24];

/// Memory for direct reads, in huge pages if the system has them: a read into small pages is split into hundreds of
/// pieces.
struct Pages {
    ptr: *mut u8,
    layout: Layout,
    len: usize,
}

const HUGE_PAGE: usize = 2 << 20;

impl Pages {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.next_multiple_of(HUGE_PAGE), HUGE_PAGE).expect("a size");
        // SAFETY: the layout has a size other than zero.
        let ptr = unsafe { alloc(layout) };
        assert!(!ptr.is_null(), "memory");
        // SAFETY: whole pages that were just allocated; advice changes no contents. If the advice is refused, pages
        // stay small.
        unsafe { libc::madvise(ptr.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        // SAFETY: the length of the allocation; touched only after the advice, so that the advice applies.
        unsafe { ptr.write_bytes(0, layout.size()) };
        Self { ptr, layout, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: no more than the initialised bytes that were allocated, borrowed from the owner.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

/// Block size, concurrent reads, and method; for each round MB/s and processor seconds.
type Cell = (usize, usize, &'static str);

/// Reads this number of bytes of a file in blocks, with this number of concurrent reads.
type Read = fn(&File, u64, usize, usize, &mut Pages) -> io::Result<()>;

/// Blocks without a read under way, the longest free one first.
fn blocks(pages: &mut Pages, block: usize) -> VecDeque<&mut [u8]> {
    pages.bytes().chunks_exact_mut(block).collect()
}

fn by_threads(file: &File, total: u64, block: usize, n: usize, pages: &mut Pages) -> io::Result<()> {
    let (next, free) = (AtomicU64::new(0), Mutex::new(blocks(pages, block)));
    std::thread::scope(|scope| {
        let read = || -> io::Result<()> {
            loop {
                let offset = next.fetch_add(block as u64, Ordering::Relaxed);
                if offset + block as u64 > total {
                    return Ok(());
                }
                let to = free.lock().expect("no panic").pop_front().expect("more blocks than threads");
                file.read_exact_at(to, offset)?;
                free.lock().expect("no panic").push_back(to);
            }
        };
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(read)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn by_ring(file: &File, total: u64, block: usize, n: usize, pages: &mut Pages) -> io::Result<()> {
    let mut ring: IoUring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64)?;
    let mut blocks = blocks(pages, block);
    let (n_blocks, mut next, mut n_under_way) = (blocks.len(), 0u64, 0);
    let mut free: VecDeque<usize> = (0..n_blocks).collect();
    loop {
        while next + block as u64 <= total
            && n_under_way < n
            && let Some(slot) = free.pop_front()
        {
            let to = blocks[slot].as_mut_ptr();
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), to, block as u32).offset(next);
            // SAFETY: the block's memory outlives the ring's reads (the loop ends when none is under way), and no other
            // read writes to it meanwhile.
            unsafe { ring.submission().push(&read.build().user_data(slot as u64)) }.expect("room");
            next += block as u64;
            n_under_way += 1;
        }
        if n_under_way == 0 {
            return Ok(());
        }
        ring.submit_and_wait(1)?;
        for done in ring.completion() {
            assert_eq!(done.result(), block as i32, "a whole read");
            free.push_back(done.user_data() as usize);
            n_under_way -= 1;
        }
    }
}

/// Processor time of the process, in seconds.
fn cpu_s() -> f64 {
    // SAFETY: plain numbers, for which zeros are valid; the call fills them.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (path, mib, rounds, memory_mib) = match args.as_slice() {
        [_, path, mib, rounds] => (path, mib, rounds, "0"),
        [_, path, mib, rounds, memory_mib] => (path, mib, rounds, memory_mib.as_str()),
        _ => return Err("usage: reads FILE MIB ROUNDS [MEMORY_MIB]".into()),
    };
    let memory = memory_mib.parse::<usize>()? << 20;
    let (total, rounds) = (mib.parse::<u64>()? << 20, rounds.parse::<usize>()?);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let ways: [(&str, Read); 2] = [("threads", by_threads), ("io_uring", by_ring)];
    let mut cells: BTreeMap<Cell, Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..rounds {
        for block in BLOCKS {
            for n in AT_A_TIME {
                let mut pages = Pages::new(memory.max(block * n));
                for (name, read) in ways {
                    let (cpu, start) = (cpu_s(), Instant::now());
                    read(&file, total, block, n, &mut pages)?;
                    let mb_s = total as f64 / start.elapsed().as_secs_f64() / 1e6;
                    cells.entry((block, n, name)).or_default().push((mb_s, cpu_s() - cpu));
                }
            }
        }
    }
    println!(
        "| block, KiB | at a time | by | median MB/s | best MB/s | processor s per GB |\n| ---: | ---: | --- | ---: | ---: | ---: |"
    );
    for ((block, n, name), mut rounds) in cells {
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let cpu = rounds.iter().map(|round| round.1).sum::<f64>() / rounds.len() as f64;
        let (median, best) = (rounds[rounds.len() / 2].0, rounds[rounds.len() - 1].0);
        println!(
            "| {} | {n} | {name} | {median:.0} | {best:.0} | {:.3} |",
            block >> 10,
            cpu * 1e9 / total as f64
        );
    }
    Ok(())
}
