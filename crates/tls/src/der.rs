//! The few parts of a certificate that its parser leaves as they are.

/// Tag, content and what follows, of the first DER element (X.690).
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => rest.split_first_chunk::<2>().map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))?,
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// The common name in a subject (RFC 5280, 4.1.2.6): a sequence of sets of pairs of kind and text.
pub(crate) fn common_name(mut subject: &[u8]) -> Option<String> {
    /// 2.5.4.3
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    while !subject.is_empty() {
        let (_, set, rest) = element(subject)?;
        subject = rest;
        let (_, pair, _) = element(set)?;
        let (_, kind, value) = element(pair)?;
        if kind == COMMON_NAME {
            let (_, text, _) = element(value)?;
            let text = std::str::from_utf8(text).ok()?;
            return (!text.is_empty()).then(|| text.to_string());
        }
    }
    None
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
