//! A page cache of segments with a fixed amount of memory.
//!
//! Pages are evicted by the clock algorithm: the hand skips pages used since its last pass.

/// Bytes of a page: the system's unit of reading, and the unit of a checksum.
pub(super) const PAGE_BYTES: usize = 4096;

/// Minimum number of pages, so that a search does not evict its own pages.
const PAGES_MIN: usize = 64;

/// Number of pages per allocation.
const CHUNK_PAGES: usize = 64;

const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct PageCache {
    /// `[slots, PAGE_BYTES]`, in chunks of [`CHUNK_PAGES`]. One vector would exceed the limit when it doubles.
    chunks: Vec<Box<[u8]>>,
    slots: Vec<Slot>,
    n_slots_max: usize,
    hand: usize,
    /// Per file: the slot of each of its pages.
    files: Vec<Vec<u32>>,
    free_files: Vec<u32>,
    free_slots: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    file: u32,
    page: u32,
    used: bool,
}

/// The index of a file in the cache. Every added file must be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CachedFile(u32);

impl PageCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        let n_slots_max = (bytes_max / PAGE_BYTES).clamp(PAGES_MIN, ABSENT as usize);
        PageCache {
            chunks: Vec::new(),
            slots: Vec::new(),
            n_slots_max,
            hand: 0,
            files: Vec::new(),
            free_files: Vec::new(),
            free_slots: Vec::new(),
        }
    }

    pub(super) fn add_file(&mut self, n_pages: usize) -> CachedFile {
        let pages = vec![ABSENT; n_pages];
        match self.free_files.pop() {
            Some(file) => {
                self.files[file as usize] = pages;
                CachedFile(file)
            }
            None => {
                self.files.push(pages);
                CachedFile(self.files.len() as u32 - 1)
            }
        }
    }

    pub(super) fn remove_file(&mut self, file: CachedFile) {
        let pages = std::mem::take(&mut self.files[file.0 as usize]);
        for slot in pages.into_iter().filter(|&slot| slot != ABSENT) {
            self.slots[slot as usize] = Slot { file: ABSENT, page: 0, used: false };
            self.free_slots.push(slot);
        }
        self.free_files.push(file.0);
    }

    /// A page of a file. `load` fills it if it is not in the cache. After an error, the page is not in the cache.
    pub(super) fn page<E>(
        &mut self,
        file: CachedFile,
        page: u32,
        load: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<&[u8], E> {
        let known = self.files[file.0 as usize][page as usize];
        if known != ABSENT {
            self.slots[known as usize].used = true;
            return Ok(self.slot_bytes(known));
        }
        let slot = self.take_slot();
        let (chunk, at) = place(slot);
        if let Err(error) = load(&mut self.chunks[chunk][at..at + PAGE_BYTES]) {
            self.free_slots.push(slot);
            return Err(error);
        }
        // Counts as used from the second access on: pages read once are evicted before pages read often.
        self.slots[slot as usize] = Slot { file: file.0, page, used: false };
        self.files[file.0 as usize][page as usize] = slot;
        Ok(self.slot_bytes(slot))
    }

    fn slot_bytes(&self, slot: u32) -> &[u8] {
        let (chunk, at) = place(slot);
        &self.chunks[chunk][at..at + PAGE_BYTES]
    }

    /// A slot without a page.
    fn take_slot(&mut self) -> u32 {
        if let Some(slot) = self.free_slots.pop() {
            return slot;
        }
        if self.slots.len() < self.n_slots_max {
            if self.slots.len() == self.chunks.len() * CHUNK_PAGES {
                self.chunks.push(vec![0; CHUNK_PAGES * PAGE_BYTES].into_boxed_slice());
            }
            self.slots.push(Slot { file: ABSENT, page: 0, used: false });
            return self.slots.len() as u32 - 1;
        }
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if !std::mem::take(&mut slot.used) {
                self.files[slot.file as usize][slot.page as usize] = ABSENT;
                slot.file = ABSENT;
                return self.hand as u32;
            }
        }
    }

    /// Bytes on the heap.
    pub(super) fn memory_usage(&self) -> usize {
        let pages: usize = self.files.iter().map(|pages| pages.capacity() * 4).sum();
        self.chunks.len() * CHUNK_PAGES * PAGE_BYTES + self.slots.capacity() * size_of::<Slot>() + pages
    }
}

/// The chunk of a slot, and the offset in it.
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / CHUNK_PAGES, slot as usize % CHUNK_PAGES * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fill(file: CachedFile, page: u32) -> impl FnOnce(&mut [u8]) -> Result<(), ()> {
        move |bytes| {
            bytes.fill(file.0 as u8 ^ (page as u8) << 4);
            Ok(())
        }
    }

    proptest! {
        /// For any order of accesses, each page holds its own bytes, and memory stays within its limit.
        #[test]
        fn a_page_is_its_own(asked in proptest::collection::vec((0..3usize, 0..100u32, 0..50u8), 0..600)) {
            let mut cache = PageCache::new(0);
            let mut files: Vec<CachedFile> = (0..3).map(|_| cache.add_file(100)).collect();
            for (file, page, choice) in asked {
                match choice {
                    0 => {
                        cache.remove_file(files[file]);
                        files[file] = cache.add_file(100);
                    }
                    1 => prop_assert!(cache.page(files[file], page, |_| Err(())).is_err()
                        || cache.files[files[file].0 as usize][page as usize] != ABSENT),
                    _ => {
                        let bytes = cache.page(files[file], page, fill(files[file], page)).unwrap();
                        prop_assert!(bytes.iter().all(|&byte| byte == files[file].0 as u8 ^ (page as u8) << 4));
                    }
                }
            }
            prop_assert!(cache.chunks.len() * CHUNK_PAGES <= PAGES_MIN);
        }
    }

    #[test]
    fn what_is_used_again_stays() {
        let mut cache = PageCache::new(0);
        let file = cache.add_file(1000);
        let mut n_loads = 0;
        for page in 1..1000 {
            for page in [0, page] {
                let counted = |_: &mut [u8]| {
                    n_loads += usize::from(page == 0);
                    Ok::<(), ()>(())
                };
                cache.page(file, page, counted).unwrap();
            }
        }
        assert_eq!(n_loads, 1);
    }
}
