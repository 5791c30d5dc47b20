//! Reference-counted KV pages.

/// One reference to a page; only [`PagePool::release`] gives it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped reference leaks its page"]
pub struct Page(u32);

impl Page {
    /// The page's number in the engine's KV memory.
    pub fn index(&self) -> u32 {
        self.0
    }
}

/// All pages of an engine.
#[derive(Debug)]
pub struct PagePool {
    references: Vec<u32>,
    /// Of those, references that the prefix cache holds.
    kept: Vec<u32>,
    free: Vec<u32>,
    /// Pages that nobody but the cache refers to.
    cold: usize,
}

impl PagePool {
    /// A pool of `pages` free pages; a number over `u32::MAX` is cut to it.
    pub fn new(pages: usize) -> Self {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        // Low numbers are handed out first.
        let counts = vec![0; pages as usize];
        Self { references: counts.clone(), kept: counts, free: (0..pages).rev().collect(), cold: 0 }
    }

    /// Pages in all.
    pub fn capacity(&self) -> usize {
        self.references.len()
    }

    /// Pages nobody refers to.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Pages that nobody but the prefix cache refers to.
    pub(crate) fn cold(&self) -> usize {
        self.cold
    }

    /// Whether nobody but the prefix cache refers to a page.
    pub(crate) fn is_cold(&self, page: &Page) -> bool {
        let page = page.0 as usize;
        self.kept[page] > 0 && self.kept[page] == self.references[page]
    }

    /// A reference for the prefix cache.
    pub(crate) fn keep(&mut self, page: &Page) -> Page {
        self.kept[page.0 as usize] += 1;
        self.references[page.0 as usize] += 1;
        Page(page.0)
    }

    /// Gives a reference of the prefix cache back.
    pub(crate) fn drop_kept(&mut self, page: Page) {
        self.cold -= usize::from(self.is_cold(&page));
        self.kept[page.0 as usize] -= 1;
        self.release(page);
    }

    /// Takes a free page.
    pub fn alloc(&mut self) -> Option<Page> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        Some(Page(page))
    }

    /// A second reference to the same page.
    pub fn retain(&mut self, page: &Page) -> Page {
        self.cold -= usize::from(self.is_cold(page));
        self.references[page.0 as usize] += 1;
        Page(page.0)
    }

    /// Gives a reference back; the page is free after the last one.
    pub fn release(&mut self, page: Page) {
        let references = &mut self.references[page.0 as usize];
        *references -= 1;
        if *references == 0 {
            self.free.push(page.0);
        }
        self.cold += usize::from(self.is_cold(&page));
    }

    /// References to a page.
    pub fn references(&self, page: &Page) -> u32 {
        self.references[page.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_is_free_after_its_last_release() {
        let mut pool = PagePool::new(2);
        let first = pool.alloc().unwrap();
        let again = pool.retain(&first);
        let second = pool.alloc().unwrap();
        assert_eq!((first.index(), second.index()), (0, 1));
        assert!(pool.alloc().is_none());
        pool.release(first);
        assert_eq!(pool.available(), 0);
        pool.release(again);
        assert_eq!((pool.available(), pool.capacity()), (1, 2));
        assert_eq!(pool.alloc().map(|page| page.index()), Some(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pages_are_conserved(
            size in 1_usize..20,
            operations in prop::collection::vec((0_u8..3, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut pool = PagePool::new(size);
            let mut held: Vec<Page> = Vec::new();
            for (operation, pick) in operations {
                match operation {
                    0 => {
                        let before = pool.available();
                        let page = pool.alloc();
                        prop_assert_eq!(page.is_some(), before > 0);
                        if let Some(page) = page {
                            prop_assert!(held.iter().all(|other| other.index() != page.index()));
                            held.push(page);
                        }
                    }
                    1 if !held.is_empty() => held.push(pool.retain(pick.get(&held))),
                    2 if !held.is_empty() => pool.release(held.swap_remove(pick.index(held.len()))),
                    _ => {}
                }
                let mut distinct: Vec<u32> = held.iter().map(Page::index).collect();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(distinct.len() + pool.available(), pool.capacity());
                for page in &held {
                    let count = held.iter().filter(|other| *other == page).count();
                    prop_assert_eq!(pool.references(page) as usize, count);
                }
            }
        }
    }
}
