//! A block that is written, trimmed and zeroed, one change at a time: what it may show is known at every moment.

use std::collections::BTreeSet;

/// See the module. It begins with zeroes.
#[derive(Debug, Default)]
pub struct Scratch {
    /// What it shows without the change under way; 0: zeroes.
    shown: u64,
    /// The change under way: its serial number, and what it shows.
    under_way: Option<(u64, u64)>,
    /// Changes that had no effect when a later owner looked.
    lost: BTreeSet<u64>,
    last: u64,
}

impl Scratch {
    /// A change is handed in: to zeroes, or to a write of the number that is returned second. First is its serial
    /// number. The one before was answered, or a later owner has looked.
    pub fn change(&mut self, to_zeroes: bool) -> (u64, u64) {
        self.last += 1;
        let to = if to_zeroes { 0 } else { self.last };
        self.under_way = Some((self.last, to));
        (self.last, to)
    }

    /// A change was answered with success. Errors: R1, R2: it had no effect when a later owner looked.
    pub fn answered(&mut self, serial: u64) -> Result<(), String> {
        if self.lost.contains(&serial) {
            return Err(format!(
                "R1, R2: change {serial} was answered with success, and a later owner did not find it"
            ));
        }
        if let Some((_, to)) = self.under_way.take_if(|(number, _)| *number == serial) {
            self.shown = to;
        }
        Ok(())
    }

    /// A read by the owner that has the set, asked with no change under way. Errors: R3: it shows something else than
    /// the last change.
    pub fn read(&self, found: u64) -> Result<(), String> {
        let expected = self.shown;
        if found == expected || self.under_way.is_some_and(|(_, to)| to == found) {
            return Ok(());
        }
        Err(format!("R3: a block that is trimmed reads as {found}, expected {expected} (0: zeroes)"))
    }

    /// The first read of a later owner: what was under way has taken effect, or never will. Errors: R1, R4: it shows
    /// neither what was there nor the change under way.
    pub fn resolve(&mut self, found: u64) -> Result<(), String> {
        self.read(found).map_err(|why| format!("R1, R4: a later owner looks: {why}"))?;
        if let Some((serial, to)) = self.under_way.take()
            && to != found
        {
            self.lost.insert(serial);
        }
        self.shown = found;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_shows_its_last_change_and_nothing_from_before() {
        let mut block = Scratch::default();
        block.read(0).expect("zeroes");
        let (serial, written) = block.change(false);
        block.answered(serial).expect("handed in");
        block.read(written).expect("the write");
        assert!(block.read(0).is_err(), "R1");
        let (trim, _) = block.change(true);
        block.answered(trim).expect("handed in");
        let (serial, later) = block.change(false);
        block.answered(serial).expect("handed in");
        assert!(block.read(0).is_err(), "the trim took effect a second time");
        block.read(later).expect("the last one");
    }

    #[test]
    fn what_was_under_way_is_decided_by_the_first_look_of_a_later_owner() {
        for there in [false, true] {
            let mut block = Scratch::default();
            let (serial, to) = block.change(false);
            assert!(block.resolve(to + 1).is_err(), "nobody wrote that");
            block.resolve(if there { to } else { 0 }).expect("either");
            assert_eq!(block.answered(serial).is_ok(), there);
            assert!(block.read(if there { 0 } else { to }).is_err(), "it never comes");
        }
    }
}
