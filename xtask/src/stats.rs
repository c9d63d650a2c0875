//! Medians, and what else the machine was doing meanwhile.

/// The middle of `values`; of an even number, the mean of the two in the middle. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[mid]),
        _ => Some(f64::midpoint(sorted[mid - 1], sorted[mid])),
    }
}

/// Load average and pressure (share of the last 10 s in which something waited) as one line.
pub fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let pressure = |what: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).unwrap_or_default();
        let some = text.lines().find(|l| l.starts_with("some")).unwrap_or_default().to_owned();
        some.split(' ').find_map(|f| f.strip_prefix("avg10=").map(str::to_owned)).unwrap_or_else(|| "?".into())
    };
    format!(
        "load {load}, waiting for cpu {} % io {} % memory {} %",
        pressure("cpu"),
        pressure("io"),
        pressure("memory")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
