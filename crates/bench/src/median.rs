//! The one turn of several that stands for all of them in every table.

/// The median turn by its rate; of an even number the slower one of the two in the middle, so that no number of turns
/// makes a place look faster than it is.
///
/// # Panics
/// Without any turn.
pub fn median<T: Copy>(turns: &[T], rate: impl Fn(&T) -> f64) -> T {
    let mut turns = turns.to_vec();
    turns.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    turns[(turns.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_of_turns_counts_with_the_slower_middle() {
        for (turns, expected) in
            [(&[5.0][..], 5.0), (&[9.0, 1.0], 1.0), (&[3.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 3.0, 2.0], 2.0)]
        {
            assert_eq!(median(turns, |turn| *turn), expected, "{turns:?}");
        }
    }
}
