//! Bytes as hexadecimal digits.

/// Lower-case hexadecimal digits.
pub fn write(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of hexadecimal digits; `None` if they are none.
pub fn read(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    Some(digits?.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways() {
        assert_eq!(write(&[0, 0xab, 0xff]), "00abff");
        assert_eq!(read("00abFF"), Some(vec![0, 0xab, 0xff]));
        assert_eq!(read("0"), None);
        assert_eq!(read("0g"), None);
    }
}
