//! A rough network, and the seeds that tests on it run with.

use aze_io::sim::Faults;

/// Frames get lost, come twice or in another order, and connections are cut.
pub fn rough() -> Faults {
    Faults {
        loss_ppm: 10_000,
        duplicate_ppm: 20_000,
        reorder_ppm: 50_000,
        connection_cut_ppm: 2_000,
        ..Faults::default()
    }
}

/// Seeds on every change, `AZE_SIM_SEEDS` for more of them, from `AZE_SIM_FROM` on.
pub fn seeds(otherwise: u64) -> std::ops::Range<u64> {
    let number = |variable: &str| std::env::var(variable).ok().map(|text| text.parse::<u64>().expect("a number"));
    let from = number("AZE_SIM_FROM").unwrap_or(0);
    from..from + number("AZE_SIM_SEEDS").unwrap_or(otherwise)
}
