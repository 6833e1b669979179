//! LRU cache with a budget in bytes.

use std::borrow::Borrow;
use std::hash::Hash;

use lru::LruCache;

/// Map of `K` to `V` whose values together stay within a budget. The value used last stays even if
/// it alone exceeds the budget: its caller is about to use it.
#[derive(Debug)]
pub struct ByteCache<K: Hash + Eq, V> {
    entries: LruCache<K, (V, usize)>,
    bytes: usize,
    budget: usize,
}

impl<K: Hash + Eq, V: Clone> ByteCache<K, V> {
    /// Creates an empty cache of `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Self { entries: LruCache::unbounded(), bytes: 0, budget }
    }

    /// Returns the value of `key`, and marks it as used.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(value, _)| value.clone())
    }

    /// Inserts a value of `bytes` bytes, and evicts the least recently used ones until all fit.
    pub fn put(&mut self, key: K, value: V, bytes: usize) {
        if let Some((_, old)) = self.entries.put(key, (value, bytes)) {
            self.bytes -= old;
        }
        self.bytes += bytes;
        while self.bytes > self.budget && self.entries.len() > 1 {
            if let Some((_, (_, old))) = self.entries.pop_lru() {
                self.bytes -= old;
            }
        }
    }

    /// Removes the values whose keys `is_meant` selects.
    pub fn remove_if(&mut self, is_meant: impl Fn(&K) -> bool)
    where
        K: Clone,
    {
        let meant: Vec<K> =
            self.entries.iter().map(|(key, _)| key).filter(|key| is_meant(key)).cloned().collect();
        meant.iter().for_each(|key| self.remove(key));
    }

    /// Removes a value.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some((_, old)) = self.entries.pop(key) {
            self.bytes -= old;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = ByteCache::new(10);
        cache.put('a', 1, 4);
        cache.put('b', 2, 4);
        assert_eq!(cache.get(&'a'), Some(1));
        cache.put('c', 3, 4);
        assert_eq!((cache.get(&'a'), cache.get(&'b'), cache.get(&'c')), (Some(1), None, Some(3)));
        cache.put('a', 9, 8);
        assert_eq!((cache.get(&'a'), cache.get(&'c')), (Some(9), None));
    }

    #[test]
    fn a_value_above_the_budget_stays_until_the_next() {
        let mut cache = ByteCache::new(10);
        cache.put('a', 1, 100);
        assert_eq!(cache.get(&'a'), Some(1));
        cache.put('b', 2, 1);
        assert_eq!((cache.get(&'a'), cache.get(&'b')), (None, Some(2)));
        cache.remove(&'b');
        assert_eq!((cache.get(&'b'), cache.bytes), (None, 0));
    }
}
