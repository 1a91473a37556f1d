//! An input as a script: bytes taken off its front.

/// What is left of it.
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number: mostly a small one, now and then any.
    #[allow(dead_code, reason = "not every target has numbers")]
    pub fn number(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            255 => {
                let (taken, rest) = self.0.split_at(self.0.len().min(8));
                self.0 = rest;
                let fold = |n: u64, b: &u8| n << 8 | u64::from(*b);
                taken.iter().fold(0, fold)
            }
            small => u64::from(small),
        }
    }

    /// As many as the next byte says, or as there are.
    pub fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.byte().unwrap_or(0));
        let (taken, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
