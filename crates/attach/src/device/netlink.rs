//! Generic netlink as the kernel's nbd driver speaks it: messages as bytes, without a socket.
//!
//! ```text
//!   length u32 │ type u16 │ flags u16 │ sequence u32 │ port u32      every message
//!   command u8 │ version u8 │ 0 u16                                   generic netlink
//!   length u16 │ kind u16 │ value, padded to 4 bytes                  attributes, which may hold attributes
//! ```
//! All numbers are in the machine's byte order. Names and numbers come from the kernel's `linux/netlink.h`,
//! `linux/genetlink.h` and `linux/nbd-netlink.h`. Written by hand, because there are only a few requests, and a netlink
//! crate brings sockets and runtimes of its own.

use std::collections::BTreeMap;

/// The family that lists the others.
const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_VERSION: u8 = 2;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

/// The driver's family.
const NBD_NAME: &str = "nbd";
const NBD_VERSION: u8 = 1;

const FLAG_REQUEST: u16 = 1;
const FLAG_ACK: u16 = 4;
const TYPE_NOOP: u16 = 1;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;
/// Bit of an attribute's kind: it holds attributes.
const NESTED: u16 = 1 << 15;
/// Bits of an attribute's kind that are its number.
const KIND_MASK: u16 = 0x3fff;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// A request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask<'a> {
    /// Get the number of the driver's family.
    Family,
    /// Make a device over these sockets. The kernel chooses its number.
    Connect(Connect<'a>),
    /// Give a device new sockets in place of those that died.
    Reconfigure {
        /// N of /dev/nbdN.
        index: u32,
        /// The name that it was connected with.
        backend: &'a str,
        /// File descriptors of this process.
        sockets: &'a [u32],
    },
    /// Tell a device its new size. Never together with sockets: the driver sets the size first, and may wait for
    /// requests that need the sockets.
    Resize {
        /// N of /dev/nbdN.
        index: u32,
        /// The name that it was connected with.
        backend: &'a str,
        /// Size in bytes.
        size: u64,
    },
    /// Take the sockets away. Every request on the device fails, and it is free once nobody has it open.
    Disconnect {
        /// N of /dev/nbdN.
        index: u32,
    },
}

/// A device to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connect<'a> {
    /// Size in bytes.
    pub(super) size: u64,
    /// Size of a logical block in bytes.
    pub(super) block: u64,
    /// Transmission flags.
    pub(super) flags: u16,
    /// How long requests wait for a new socket once all are dead, in seconds.
    pub(super) dead_s: u64,
    /// Name of the device in sysfs. Every later request must have it.
    pub(super) backend: &'a str,
    /// File descriptors of this process.
    pub(super) sockets: &'a [u32],
}

#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn put(mut self, kind: u16, value: &[u8]) -> Self {
        let length =
            u16::try_from(ATTRIBUTE_BYTES + value.len()).expect("attributes are short: bounded by our callers");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn word(self, kind: u16, value: u32) -> Self {
        self.put(kind, &value.to_ne_bytes())
    }

    fn long(self, kind: u16, value: u64) -> Self {
        self.put(kind, &value.to_ne_bytes())
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.put(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn sockets(self, sockets: &[u32]) -> Self {
        let items = sockets.iter().fold(Self::default(), |items, fd| {
            items.put(SOCKET_ITEM | NESTED, &Self::default().word(SOCKET_FD, *fd).0)
        });
        self.put(SOCKETS | NESTED, &items.0)
    }
}

/// The whole message of a request. `family` counts for all but [`Ask::Family`].
pub(super) fn encode(ask: &Ask<'_>, family: u16, sequence: u32) -> Vec<u8> {
    let none = Attributes::default();
    let (kind, command, version, attributes) = match ask {
        Ask::Family => (CONTROL_FAMILY, CONTROL_GET_FAMILY, CONTROL_VERSION, none.text(CONTROL_FAMILY_NAME, NBD_NAME)),
        Ask::Connect(plan) => {
            // Timeout zero: the driver lets a request wait for as long as its socket lives. How long that may be is not
            // the kernel's to judge (R8).
            let all = none.long(SIZE_BYTES, plan.size).long(BLOCK_SIZE_BYTES, plan.block).long(TIMEOUT, 0);
            let all = all.long(SERVER_FLAGS, u64::from(plan.flags)).long(DEAD_CONN_TIMEOUT, plan.dead_s);
            (family, CONNECT, NBD_VERSION, all.text(BACKEND_IDENTIFIER, plan.backend).sockets(plan.sockets))
        }
        Ask::Reconfigure { index, backend, sockets } => {
            let all = none.word(INDEX, *index).text(BACKEND_IDENTIFIER, backend);
            (family, RECONFIGURE, NBD_VERSION, all.sockets(sockets))
        }
        Ask::Resize { index, backend, size } => {
            let all = none.word(INDEX, *index).text(BACKEND_IDENTIFIER, backend);
            (family, RECONFIGURE, NBD_VERSION, all.long(SIZE_BYTES, *size))
        }
        Ask::Disconnect { index } => (family, DISCONNECT, NBD_VERSION, none.word(INDEX, *index)),
    };
    let length = HEADER_BYTES + GENERIC_BYTES + attributes.0.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).expect("attributes are short: bounded by our callers").to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((FLAG_REQUEST | FLAG_ACK).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The kernel fills in which port it came from.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([command, version, 0, 0]);
    bytes.extend(attributes.0);
    bytes
}

/// What the kernel says in one datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The request is over: 0, or an errno.
    pub(super) end: Option<i32>,
    /// Attributes of the answer by kind.
    pub(super) attributes: BTreeMap<u16, Vec<u8>>,
}

impl Heard {
    /// Number of the family asked for.
    pub(super) fn family(&self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.attributes.get(&CONTROL_FAMILY_ID)?.get(..2)?.try_into().ok()?))
    }

    /// N of the device that was made.
    pub(super) fn index(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.attributes.get(&INDEX)?.get(..4)?.try_into().ok()?))
    }
}

/// Adds what a datagram says about request `sequence`; messages about others are left out.
///
/// # Errors
/// Bytes that are no messages.
pub(super) fn decode(mut bytes: &[u8], sequence: u32, heard: &mut Heard) -> Result<(), String> {
    while !bytes.is_empty() {
        let header = bytes.get(..HEADER_BYTES).ok_or_else(|| short("a message's header", HEADER_BYTES, bytes.len()))?;
        let length = word(header, 0) as usize;
        let message = bytes.get(HEADER_BYTES..length).ok_or_else(|| short("a message", length, bytes.len()))?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        if word(header, 8) == sequence {
            match kind {
                TYPE_NOOP => {}
                TYPE_ERROR if message.len() >= 4 => heard.end = Some(word(message, 0).cast_signed().wrapping_neg()),
                TYPE_ERROR => return Err(short("an error", 4, message.len())),
                TYPE_DONE => heard.end = Some(0),
                _ => attributes(message.get(GENERIC_BYTES..).unwrap_or_default(), &mut heard.attributes)?,
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

fn attributes(mut bytes: &[u8], into: &mut BTreeMap<u16, Vec<u8>>) -> Result<(), String> {
    while bytes.len() >= ATTRIBUTE_BYTES {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & KIND_MASK;
        let value = bytes.get(ATTRIBUTE_BYTES..length).ok_or_else(|| short("an attribute", length, bytes.len()))?;
        into.insert(kind, value.to_vec());
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(what: &str, expected: usize, found: usize) -> String {
    format!("netlink: found {found} bytes, expected {what} of {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan<'a>(sockets: &'a [u32]) -> Ask<'a> {
        let (size, block, flags, dead_s) = (1 << 30, 512, 0x16d, 300);
        Ask::Connect(Connect { size, block, flags, dead_s, backend: "holdfast x", sockets })
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    // What the kernel of a guest has taken (docs/zfs.md): little-endian machines only.
    #[cfg(target_endian = "little")]
    #[test]
    fn messages_are_these_bytes() {
        assert_eq!(
            hex(&encode(&Ask::Family, 0, 7)),
            concat!("1c000000", "1000", "0500", "07000000", "00000000", "03020000", "0800", "0200", "6e626400")
        );
        let connect = concat!(
            "7c000000",
            "1c00",
            "0500",
            "08000000",
            "00000000",
            "01010000", // headers
            "0c00",
            "0200",
            "0000004000000000", // size
            "0c00",
            "0300",
            "0002000000000000", // block
            "0c00",
            "0400",
            "0000000000000000", // timeout
            "0c00",
            "0500",
            "6d01000000000000", // flags
            "0c00",
            "0800",
            "2c01000000000000", // dead connections
            "0f00",
            "0a00",
            "686f6c64666173742078",
            "00",
            "00", // backend, padded
            "1c00",
            "0780",
            "0c00",
            "0180",
            "0800",
            "0100",
            "03000000",
            "0c00",
            "0180",
            "0800",
            "0100",
            "09000000"
        );
        assert_eq!(hex(&encode(&plan(&[3, 9]), 0x1c, 8)), connect);
        assert_eq!(
            hex(&encode(&Ask::Disconnect { index: 5 }, 0x1c, 9)),
            concat!("1c000000", "1c00", "0500", "09000000", "00000000", "02010000", "0800", "0100", "05000000")
        );
        let again = encode(&Ask::Reconfigure { index: 5, backend: "b", sockets: &[4] }, 0x1c, 10);
        assert_eq!(
            hex(&again),
            concat!(
                "34000000", "1c00", "0500", "0a000000", "00000000", "03010000", // headers
                "0800", "0100", "05000000", "0600", "0a00", "62000000", // index, backend
                "1000", "0780", "0c00", "0180", "0800", "0100", "04000000"
            )
        );
        let larger = encode(&Ask::Resize { index: 5, backend: "b", size: 3 << 30 }, 0x1c, 11);
        assert_eq!(
            hex(&larger),
            concat!(
                "30000000",
                "1c00",
                "0500",
                "0b000000",
                "00000000",
                "03010000", // headers
                "0800",
                "0100",
                "05000000",
                "0600",
                "0a00",
                "62000000", // index, backend
                "0c00",
                "0200",
                "000000c000000000" // size
            )
        );
    }

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = (u32::try_from(HEADER_BYTES + body.len()).unwrap()).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn an_answer_and_its_acknowledgement_may_share_a_datagram() {
        let body = [&[1, 1, 0, 0][..], &Attributes::default().word(INDEX, 6).0].concat();
        let stale = message(TYPE_ERROR, 6, &(-5_i32).to_ne_bytes());
        let bytes = [message(0x1c, 7, &body), message(TYPE_ERROR, 7, &[0; 20]), stale].concat();
        let mut heard = Heard::default();
        decode(&bytes, 7, &mut heard).unwrap();
        assert_eq!((heard.end, heard.index()), (Some(0), Some(6)), "the late answer to request 6 is left out");
    }

    #[test]
    fn a_refusal_is_its_errno() {
        let mut heard = Heard::default();
        decode(&message(TYPE_ERROR, 1, &(-1_i32).to_ne_bytes()), 1, &mut heard).unwrap();
        assert_eq!((heard.end, heard.index(), heard.family()), (Some(1), None, None));
    }

    #[test]
    fn the_number_of_a_family_is_read() {
        let all =
            Attributes::default().text(CONTROL_FAMILY_NAME, NBD_NAME).put(CONTROL_FAMILY_ID, &29_u16.to_ne_bytes());
        let body = [&[1, 2, 0, 0][..], &all.0].concat();
        let mut heard = Heard::default();
        decode(&message(CONTROL_FAMILY, 3, &body), 3, &mut heard).unwrap();
        assert_eq!((heard.family(), heard.end), (Some(29), None));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes, 0, &mut Heard::default());
        }

        #[test]
        fn cut_messages_are_errors(cut in 1_usize..60, fds in proptest::collection::vec(any::<u32>(), 1..16)) {
            let bytes = encode(&plan(&fds), 0x1c, 4);
            let cut = bytes.len() - cut.min(bytes.len() - 1);
            prop_assert!(decode(&bytes[..cut], 4, &mut Heard::default()).is_err());
        }
    }
}
