//! A sorted map that also tells how many of its entries come before a key.
//!
//! Answers: every enqueue into a lane says how many jobs are ahead of the new one.
//! Why not simpler: a [`BTreeMap`] does not know how many entries come before a key. Counting them
//! one by one makes a batch into a long lane cost the square of its length. Here the entries stand
//! in blocks of bounded size: counting adds up blocks and looks into one of them. A map of a few
//! entries, which is what most lanes have, is one block without anything around it.
//! Guarded by: the tests below, of what it counts and of what a count costs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most entries of one block: about as many as there are blocks in a map of a million.
const BLOCK: usize = 1024;

/// A sorted map that counts.
#[derive(Debug)]
pub(super) enum Ranked<K, V> {
    One(BTreeMap<K, V>),
    /// None of them empty, each behind the one before.
    Many(Vec<BTreeMap<K, V>>),
}

impl<K, V> Default for Ranked<K, V> {
    fn default() -> Self {
        Self::One(BTreeMap::new())
    }
}

impl<K: Ord + Copy, V> Ranked<K, V> {
    pub(super) fn len(&self) -> usize {
        self.blocks().iter().map(BTreeMap::len).sum()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.blocks().get(self.block_of(key))?.get(key)
    }

    pub(super) fn first_key_value(&self) -> Option<(&K, &V)> {
        self.blocks().first()?.first_key_value()
    }

    /// How many entries come before `key`, which need not be one of them.
    pub(super) fn ahead(&self, key: &K) -> usize {
        let (before, from) = self.blocks().split_at(self.block_of(key));
        let within = from.first().map_or(0, |block| match block.last_key_value() {
            // A new job is mostly the last of its lane.
            Some((last, _)) if last < key => block.len(),
            Some((last, _)) if last == key => block.len() - 1,
            Some(_) | None => block.range(..*key).count(),
        });
        before.iter().map(BTreeMap::len).sum::<usize>() + within
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        let at = self.block_of(&key).min(self.blocks().len() - 1);
        let block = &mut self.blocks_mut()[at];
        block.insert(key, value);
        if block.len() <= BLOCK {
            return;
        }
        let Some(middle) = block.keys().nth(BLOCK / 2).copied() else { return };
        let behind = block.split_off(&middle);
        match self {
            Self::One(block) => *self = Self::Many([core::mem::take(block), behind].into()),
            Self::Many(blocks) => blocks.insert(at + 1, behind),
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.block_of(key);
        let removed = self.blocks_mut().get_mut(at)?.remove(key)?;
        if let Self::Many(blocks) = self {
            let next = blocks.get(at + 1).map_or(0, BTreeMap::len);
            if next > 0 && blocks[at].len() + next <= BLOCK / 2 {
                let mut next = blocks.remove(at + 1);
                blocks[at].append(&mut next);
            } else if blocks[at].is_empty() {
                blocks.remove(at);
            }
            if blocks.len() <= 1 {
                *self = Self::One(blocks.pop().unwrap_or_default());
            }
        }
        Some(removed)
    }

    /// All entries in their order; the map is left empty.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        let blocks = match core::mem::take(self) {
            Self::One(block) => Vec::from([block]),
            Self::Many(blocks) => blocks,
        };
        blocks.into_iter().flatten()
    }

    pub(super) fn extend(&mut self, entries: impl IntoIterator<Item = (K, V)>) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }

    /// The block in which `key` stands or would stand; behind the last if it comes after all.
    fn block_of(&self, key: &K) -> usize {
        self.blocks().partition_point(|block| block.last_key_value().is_some_and(|(k, _)| k < key))
    }

    fn blocks(&self) -> &[BTreeMap<K, V>] {
        match self {
            Self::One(block) => core::slice::from_ref(block),
            Self::Many(blocks) => blocks,
        }
    }

    fn blocks_mut(&mut self) -> &mut [BTreeMap<K, V>] {
        match self {
            Self::One(block) => core::slice::from_mut(block),
            Self::Many(blocks) => blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks added up and entries looked at by one count: what a count costs.
    fn work(map: &Ranked<u32, ()>) -> usize {
        map.blocks().len() + map.blocks().iter().map(BTreeMap::len).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn it_counts_as_a_plain_map_does_and_its_blocks_stay_within_their_bounds(
            steps in proptest::collection::vec((0u32..40_000, 1u32..600, any::<bool>()), 1..200),
        ) {
            let (mut map, mut plain) = (Ranked::default(), BTreeMap::new());
            for (from, many, add) in steps {
                for key in from..from + many {
                    if add {
                        map.insert(key, ());
                        plain.insert(key, ());
                    } else {
                        prop_assert_eq!(map.remove(&key), plain.remove(&key));
                    }
                }
                prop_assert_eq!(map.len(), plain.len());
                prop_assert_eq!(map.first_key_value(), plain.first_key_value());
                for key in [0, from, from + many / 2, from + many, u32::MAX] {
                    prop_assert_eq!(map.ahead(&key), plain.range(..key).count());
                    prop_assert_eq!(map.get(&key), plain.get(&key));
                }
                let blocks = map.blocks();
                prop_assert!(blocks.iter().all(|block| block.len() <= BLOCK));
                prop_assert!(blocks.len() == 1 || blocks.iter().all(|block| !block.is_empty()));
            }
            prop_assert!(map.take_all().eq(plain));
        }
    }

    #[test]
    fn counting_what_is_ahead_of_a_job_costs_little_however_many_there_are() {
        let mut map = Ranked::default();
        for key in 0..200_000 {
            map.insert(key, ());
        }
        assert!(work(&map) <= 200_000 / (BLOCK / 2) + 1 + BLOCK, "{}", work(&map));
        assert_eq!(map.ahead(&123_456), 123_456);
        for key in 0..199_990 {
            map.remove(&key);
        }
        assert!(work(&map) <= 20, "what has left costs nothing: {}", work(&map));
    }
}
