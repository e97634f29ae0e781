//! Byte sizes as people write and read them.

use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes: `8GiB`, `1.5 MiB`, `4096`, `4096B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a size (expected bytes as in 8GiB, 512MiB or 4096)");
        let (number, scale) = UNITS
            .iter()
            .find_map(|&(unit, scale)| text.strip_suffix(unit).map(|number| (number, scale)))
            .unwrap_or((text, 1));
        let number = number.trim();
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Self).ok_or_else(bad);
        }
        let bytes = factor(number).ok_or_else(bad)? * scale as f64;
        // 2^64 is the first that does not fit.
        if bytes >= 18_446_744_073_709_551_616.0 { Err(bad()) } else { Ok(Self(bytes as u64)) }
    }
}

/// A plain positive decimal number, with no sign and no exponent.
pub(crate) fn factor(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse::<f64>().ok().filter(|f| plain && f.is_finite())
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|&&(_, scale)| self.0 >= scale && scale > 1);
        match unit {
            Some(&(unit, scale)) => f.pad(&format!("{:.1} {unit}", self.0 as f64 / scale as f64)),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("1.5KiB", 1536),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for text in
            ["", "GiB", "-1", "1e3", "1.2.3", "8GB", "inf", "NaN", "+5.0", "16777216TiB", ".", "x"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn shows_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 50, "1024.0 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
