//! Chance from a seed: the same seed, the same run, for ever and on every machine.

/// A stream of numbers that is fixed by its seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number().checked_rem(end).unwrap_or(0)
    }

    /// An index below `end`; 0 if there is none.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// A number from `first` to `last`, small ones as likely as large ones of another magnitude.
    pub fn spread(&mut self, first: u64, last: u64) -> u64 {
        let magnitudes = (last / first.max(1)).max(1).ilog2();
        let scaled = first.max(1) << self.below(u64::from(magnitudes) + 1);
        self.between(scaled.min(last), (scaled * 2).min(last))
    }

    /// Whether something happens that happens `times` in a thousand times.
    pub fn chance(&mut self, times: u64) -> bool {
        self.below(1_000) < times
    }

    /// Yes or no.
    pub fn coin(&mut self) -> bool {
        self.number() & 1 == 1
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, some: &'a [T]) -> &'a T {
        &some[self.index(some.len())]
    }

    /// A stream of its own that depends on this one.
    pub fn branch(&mut self) -> Random {
        Random(self.number())
    }
}
