//! Times on the command line.

use std::time::Duration;

/// The longest that a time can be: no session lasts longer, and no clock overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The shortest that isn't zero: nothing here is measured more finely.
const SHORTEST: Duration = Duration::from_millis(1);

/// Reads a time such as `90s`, `1h30m`, `250ms`, or a bare number of seconds.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let time = parse_or_zero(text)?;
    if time.is_zero() {
        return Err("no time at all is too short: 1ms is the shortest".to_owned());
    }
    Ok(time)
}

/// A time that may be zero.
pub(super) fn parse_or_zero(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = if is_number {
        // What has more digits is longer than any.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        humantime::parse_duration(text).map_err(|error| match error {
            humantime::DurationError::NumberOverflow => too_long(),
            _ => "write a time such as 90s, 10m, 1h30m or 250ms".to_owned(),
        })?
    };
    if time > LONGEST {
        Err(too_long())
    } else if !time.is_zero() && time < SHORTEST {
        Err("that is too short: 1ms is the shortest".to_owned())
    } else {
        Ok(time)
    }
}

fn too_long() -> String {
    "that is too long: 365d is the longest".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in [
            ("90", 90_000),
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1d", 86_400_000),
            ("365d", 31_536_000_000),
            ("31536000", 31_536_000_000),
            ("1ms", 1),
        ] {
            let time = Duration::from_millis(milliseconds);
            assert_eq!(parse(text), Ok(time), "{text}");
        }
        assert_eq!(parse_or_zero("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn what_is_no_time_or_means_nothing_is_refused_with_the_reason() {
        for (wrong, said) in [
            ("", "write a time"),
            ("-1s", "write a time"),
            ("5x", "write a time"),
            ("s", "write a time"),
            ("1.5.5s", "write a time"),
            ("0", "no time at all"),
            ("0s", "no time at all"),
            ("1ns", "too short"),
            ("999us", "too short"),
            ("366d", "too long"),
            ("31536001", "too long"),
            ("1000years", "too long"),
            ("99999999999999999999", "too long"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615", "too long"),
        ] {
            let error = parse(wrong).expect_err(wrong);
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
