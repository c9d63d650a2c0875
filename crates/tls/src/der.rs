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

/// The common name in a subject (RFC 5280, 4.1.2.6): a sequence of sets of pairs of kind and text. A set may have
/// several pairs: one whose common name is not the first of its set would else have no name that it is revoked by.
pub(crate) fn common_name(mut subject: &[u8]) -> Option<String> {
    /// 2.5.4.3
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    while !subject.is_empty() {
        let (_, mut set, rest) = element(subject)?;
        subject = rest;
        while !set.is_empty() {
            let (_, pair, more) = element(set)?;
            set = more;
            let (_, kind, value) = element(pair)?;
            if kind == COMMON_NAME {
                let (_, text, _) = element(value)?;
                let text = std::str::from_utf8(text).ok()?;
                return (!text.is_empty()).then(|| text.to_string());
            }
        }
    }
    None
}

/// A name in a certificate (RFC 5280, 4.2.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    Dns(&'a str),
    Uri(&'a str),
    /// Four or sixteen bytes.
    Ip(&'a [u8]),
    /// Another kind, by its tag.
    Other(u8),
}

/// All names in the subjectAltName of a certificate. `None`: it has none, or cannot be read.
pub(crate) fn alternative_names(certificate_der: &[u8]) -> Option<Vec<Name<'_>>> {
    /// 2.5.29.17
    const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    const EXTENSIONS: u8 = 0xa3;
    const OCTETS: u8 = 0x04;
    let (_, certificate, _) = element(certificate_der)?;
    let (_, mut signed, _) = element(certificate)?;
    let mut extensions = loop {
        let (tag, content, rest) = element(signed)?;
        if tag == EXTENSIONS {
            break element(content)?.1;
        }
        signed = rest;
    };
    loop {
        let (_, extension, rest) = element(extensions)?;
        extensions = rest;
        let (_, kind, mut value) = element(extension)?;
        if kind != ALTERNATIVE_NAME {
            continue;
        }
        // Whether it is critical may stand before.
        let octets = loop {
            let (tag, content, rest) = element(value)?;
            if tag == OCTETS {
                break content;
            }
            value = rest;
        };
        return names(element(octets)?.1);
    }
}

fn names(mut list: &[u8]) -> Option<Vec<Name<'_>>> {
    let mut found = Vec::new();
    while !list.is_empty() {
        let (tag, content, rest) = element(list)?;
        list = rest;
        found.push(match tag {
            0x82 => Name::Dns(std::str::from_utf8(content).ok()?),
            0x86 => Name::Uri(std::str::from_utf8(content).ok()?),
            0x87 => Name::Ip(content),
            other => Name::Other(other),
        });
    }
    Some(found)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// O=a and CN=ann in one set, as DER sorts them.
    #[test]
    fn a_common_name_beside_another_pair_is_found() {
        let organization = [0x30, 8, 0x06, 3, 0x55, 4, 0x0a, 0x0c, 1, b'a'];
        let name = [0x30, 10, 0x06, 3, 0x55, 4, 0x03, 0x0c, 3, b'a', b'n', b'n'];
        let set = |pairs: &[u8]| [&[0x31, pairs.len() as u8][..], pairs].concat();
        let both = set(&[&organization[..], &name[..]].concat());
        assert_eq!(common_name(&both).as_deref(), Some("ann"));
        assert_eq!(common_name(&[set(&organization), set(&name)].concat()).as_deref(), Some("ann"));
        assert_eq!(common_name(&set(&organization)), None);
        assert_eq!(common_name(&both[..both.len() - 1]), None, "it ends too early");
    }
}
