//! LRU caches of so many entries.

use std::hash::Hash;
use std::num::NonZeroUsize;

use lru::LruCache;

/// Creates an empty cache of at most `most` entries. It takes memory as they come; `LruCache::new`
/// would take at once what all of them need.
pub(crate) fn bounded<K: Hash + Eq, V>(most: NonZeroUsize) -> LruCache<K, V> {
    let mut cache = LruCache::unbounded();
    cache.resize(most);
    cache
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_used_longest_ago_makes_room_for_another() {
        let mut cache = bounded(NonZeroUsize::new(2).unwrap());
        cache.put("a", 1);
        cache.put("b", 2);
        cache.get("a");
        cache.put("c", 3);
        let left: Vec<_> = cache.iter().map(|(key, _)| *key).collect();
        assert_eq!(left, ["c", "a"]);
    }
}
