//! Option haggling of the server, fixed newstyle. One option at a time; questions go to the caller and are answered
//! later. TLS comes in between if the client asks for it (NBD-S1, NBD-S2).

use crate::name::EXPORT_NAME_BYTES_MAX;
use crate::wire::*;
use crate::{ExportName, ExportNameError};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Longest option data that is read, in bytes: room for a name and a metadata query of full length.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Longest option data that is skipped and refused; beyond it the peer is not a client.
const OPTION_SKIP_BYTES_MAX: usize = 1 << 20;
/// Exports that one NBD_OPT_LIST names at most.
pub const EXPORTS_LISTED_MAX: usize = 1024;
/// Options about one export at most: a client that shows all exports asks for the description and the metadata contexts
/// of each, and may ask twice.
const OPTIONS_PER_EXPORT: u32 = 4;
/// Options of one handshake that are about no export.
const OPTIONS_BESIDE: u32 = 64;
/// Options of one handshake at most, enough to ask about each export that is listed: an endless haggle is no handshake.
pub const OPTIONS_MAX: u32 = OPTIONS_BESIDE + EXPORTS_LISTED_MAX as u32 * OPTIONS_PER_EXPORT;
/// Metadata queries of one option at most.
pub const QUERIES_MAX: u32 = 64;
/// Bytes of the server's greeting.
pub const GREETING_BYTES: usize = 18;

const _: () = assert!(OPTION_BYTES_MAX > 2 * STRING_BYTES_MAX + 64);
const _: () = assert!(EXPORT_NAME_BYTES_MAX <= STRING_BYTES_MAX);

/// The peer broke the protocol, or its request cannot be answered with an error: close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Flags that we did not offer.
    #[error("client flags: found {found:#x}, expected a subset of {offered:#x}")]
    ClientFlags {
        /// Flags received.
        found: u32,
        /// Flags offered.
        offered: u32,
    },
    /// The bytes are no option.
    #[error("option: found magic {found:#018x}, expected {MAGIC_OPTION:#018x}")]
    Magic {
        /// Value received.
        found: u64,
    },
    /// More option data than any client sends.
    #[error("option {option}: found {found} bytes of data, expected at most {OPTION_SKIP_BYTES_MAX}")]
    TooLong {
        /// The option.
        option: u32,
        /// Its announced length.
        found: u32,
    },
    /// The haggling does not end.
    #[error("found more than {OPTIONS_MAX} options, expected the transmission phase")]
    TooMany,
    /// NBD-S2.
    #[error("found {found} bytes in plain text behind NBD_OPT_STARTTLS, expected TLS after its answer")]
    BehindStartTls {
        /// How many.
        found: usize,
    },
    /// NBD_OPT_EXPORT_NAME has no error reply: a refusal ends the session.
    #[error("NBD_OPT_EXPORT_NAME refused: {message}")]
    ExportName {
        /// Why.
        message: String,
    },
}

/// A question to the caller; the handshake waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which exports are there? Answer by [`Handshake::answer_list`].
    List,
    /// Describe this export, change nothing. Answer by [`Handshake::answer_export`].
    Describe(ExportName),
    /// Open this export for transmission. Answer by [`Handshake::answer_export`].
    Open(ExportName),
}

/// Where the handshake stands after [`Handshake::step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do until more bytes are there.
    NeedBytes,
    /// Send the encoded bytes, then answer.
    Ask(Question),
    /// Send the encoded bytes, do the TLS handshake on the connection, then call [`Handshake::tls_started`].
    StartTls,
    /// The client left: send the encoded bytes, then close.
    Aborted,
}

/// Whether a server takes NBD_OPT_STARTTLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// It has no TLS (NOTLS in the specification).
    #[default]
    Off,
    /// The client decides (SELECTIVETLS, for all exports).
    Optional,
    /// Nothing works without TLS (FORCEDTLS).
    Required,
}

/// Properties of an export, as sent to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFacts {
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// For people; at most [`STRING_BYTES_MAX`] bytes are sent.
    pub description: String,
}

/// Why an export is not available, as far as the protocol can express it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// There is no export of that name.
    Unknown,
    /// Not for this client.
    Policy,
    /// Not here, not now.
    Shutdown,
}

/// The negotiated properties of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Request and reply headers.
    pub style: HeaderStyle,
    /// Whether the client may ask for `base:allocation` by NBD_CMD_BLOCK_STATUS.
    pub allocation: bool,
}

#[derive(Debug)]
enum Stage {
    ClientFlags,
    Option,
    Skip { option: u32, left: usize },
    StartTls,
    Asked(Asked),
    Ended,
}

#[derive(Debug)]
struct Asked {
    option: u32,
    /// Name as received, to compare with that of the metadata contexts.
    raw_name: Bytes,
    /// The name to show: without the token.
    plain_name: String,
    wants_name: bool,
    wants_description: bool,
}

/// The server's half of the handshake.
#[derive(Debug)]
pub struct Handshake {
    stage: Stage,
    no_zeroes: bool,
    style: HeaderStyle,
    /// Export for which `base:allocation` was chosen.
    allocation_of: Option<Bytes>,
    options: u32,
    tls: TlsMode,
    secure: bool,
    /// Why the client may use no export at all.
    refusal: Option<String>,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new(TlsMode::Off)
    }
}

const TLS_REQUIRED: &str = "this port demands TLS";

fn put_reply(out: &mut BytesMut, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.reserve(20 + len);
    out.put_u64(MAGIC_OPTION_REPLY);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(len as u32);
    for part in parts {
        out.put_slice(part);
    }
}

/// Cuts a text to `max` bytes at a character boundary.
fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn put_error(out: &mut BytesMut, option: u32, kind: u32, message: &str) {
    put_reply(out, option, kind, &[cut(message, STRING_BYTES_MAX).as_bytes()]);
}

fn parse_name(raw: &[u8]) -> Result<ExportName, String> {
    if raw.len() > EXPORT_NAME_BYTES_MAX {
        return Err(ExportNameError::TooLong { found: raw.len() }.to_string());
    }
    let text = std::str::from_utf8(raw).map_err(|_| "export name: not UTF-8".to_string())?;
    text.parse().map_err(|e: ExportNameError| e.to_string())
}

/// NBD-S2.
fn nothing_behind(found: usize) -> Result<(), HandshakeError> {
    if found == 0 { Ok(()) } else { Err(HandshakeError::BehindStartTls { found }) }
}

/// Splits a string with a 32-bit length prefix off `data`. `None` if it is not complete.
fn take_string(data: &mut Bytes) -> Option<Bytes> {
    if data.len() < 4 {
        return None;
    }
    let len = usize::try_from(data.get_u32()).ok()?;
    (len <= data.len()).then(|| data.split_to(len))
}

impl Asked {
    /// The answer to NBD_OPT_INFO and NBD_OPT_GO.
    fn put_facts(&self, facts: &ExportFacts, flags: u16, out: &mut BytesMut) {
        let info = |kind: u16| kind.to_be_bytes();
        put_reply(out, self.option, REP_INFO, &[&info(INFO_EXPORT), &facts.size.to_be_bytes(), &flags.to_be_bytes()]);
        if self.wants_name {
            put_reply(out, self.option, REP_INFO, &[&info(INFO_NAME), self.plain_name.as_bytes()]);
        }
        if self.wants_description {
            let description = cut(&facts.description, STRING_BYTES_MAX);
            put_reply(out, self.option, REP_INFO, &[&info(INFO_DESCRIPTION), description.as_bytes()]);
        }
        // Sent unrequested as well: we enforce these sizes, and a client may read them anyway.
        let sizes = BlockSizes::OURS;
        let (minimum, preferred, payload) =
            (sizes.minimum.to_be_bytes(), sizes.preferred.to_be_bytes(), sizes.payload_max.to_be_bytes());
        put_reply(out, self.option, REP_INFO, &[&info(INFO_BLOCK_SIZE), &minimum, &preferred, &payload]);
        put_reply(out, self.option, REP_ACK, &[]);
    }
}

impl Handshake {
    /// For a connection that was just accepted. Send [`Handshake::greeting`] first.
    pub fn new(tls: TlsMode) -> Self {
        Self {
            stage: Stage::ClientFlags,
            no_zeroes: false,
            style: HeaderStyle::Simple,
            allocation_of: None,
            options: 0,
            tls,
            secure: false,
            refusal: None,
        }
    }

    /// The server's first bytes.
    pub fn greeting() -> [u8; GREETING_BYTES] {
        let mut greeting = [0; GREETING_BYTES];
        let mut out = &mut greeting[..];
        out.put_u64(MAGIC_GREETING);
        out.put_u64(MAGIC_OPTION);
        out.put_u16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        greeting
    }

    /// Number of options that have arrived whole.
    pub fn options(&self) -> u32 {
        self.options
    }

    /// Consumes from `input` what it can, appends to `out` what must be sent. While a question is open it consumes
    /// nothing.
    ///
    /// # Errors
    /// Close the connection; sending `out` is optional.
    pub fn step(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Step, HandshakeError> {
        loop {
            match &mut self.stage {
                Stage::ClientFlags => {
                    if input.len() < 4 {
                        return Ok(Step::NeedBytes);
                    }
                    self.client_flags(input.get_u32())?;
                }
                Stage::Skip { option, left } => {
                    let skipped = input.len().min(*left);
                    input.advance(skipped);
                    *left -= skipped;
                    if *left > 0 {
                        return Ok(Step::NeedBytes);
                    }
                    let option = *option;
                    let (kind, message) = self.bar().unwrap_or((REP_ERR_TOO_BIG, "too much option data"));
                    put_error(out, option, kind, message);
                    self.stage = Stage::Option;
                }
                Stage::Option => {
                    let Some(mut header) = input.get(..16) else { return Ok(Step::NeedBytes) };
                    let found = header.get_u64();
                    if found != MAGIC_OPTION {
                        return Err(HandshakeError::Magic { found });
                    }
                    let (option, len) = (header.get_u32(), header.get_u32());
                    let bytes = len as usize;
                    if bytes > OPTION_SKIP_BYTES_MAX {
                        return Err(HandshakeError::TooLong { option, found: len });
                    }
                    if bytes <= OPTION_BYTES_MAX && input.len() < 16 + bytes {
                        return Ok(Step::NeedBytes);
                    }
                    self.options += 1;
                    if self.options > OPTIONS_MAX {
                        return Err(HandshakeError::TooMany);
                    }
                    input.advance(16);
                    if bytes > OPTION_BYTES_MAX {
                        self.stage = Stage::Skip { option, left: bytes };
                        continue;
                    }
                    let data = input.split_to(bytes).freeze();
                    let step = match option {
                        OPT_STARTTLS => self.start_tls(&data, input.len(), out)?,
                        _ => self.option(option, data, out)?,
                    };
                    if let Some(step) = step {
                        return Ok(step);
                    }
                }
                Stage::StartTls => return nothing_behind(input.len()).map(|()| Step::StartTls),
                Stage::Asked(_) => return Ok(Step::NeedBytes),
                Stage::Ended => return Ok(Step::Aborted),
            }
        }
    }

    fn client_flags(&mut self, found: u32) -> Result<(), HandshakeError> {
        let offered = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if found & !offered != 0 {
            return Err(HandshakeError::ClientFlags { found, offered });
        }
        self.no_zeroes = found & u32::from(FLAG_NO_ZEROES) != 0;
        self.stage = Stage::Option;
        Ok(())
    }

    /// The answer to whatever a client asks that may use no export: it has no TLS where that is required (NBD-S1), or
    /// was refused after the upgrade.
    fn bar(&self) -> Option<(u32, &str)> {
        if self.tls == TlsMode::Required && !self.secure {
            return Some((REP_ERR_TLS_REQD, TLS_REQUIRED));
        }
        self.refusal.as_deref().map(|message| (REP_ERR_POLICY, message))
    }

    /// `behind`: the number of bytes that came with the option and do not belong to it.
    fn start_tls(&mut self, data: &[u8], behind: usize, out: &mut BytesMut) -> Result<Option<Step>, HandshakeError> {
        if !data.is_empty() {
            put_error(out, OPT_STARTTLS, REP_ERR_INVALID, "this option takes no data");
        } else if self.tls == TlsMode::Off {
            put_error(out, OPT_STARTTLS, REP_ERR_UNSUP, "no TLS on this port");
        } else if self.secure {
            put_error(out, OPT_STARTTLS, REP_ERR_INVALID, "TLS was started already");
        } else {
            nothing_behind(behind)?;
            put_reply(out, OPT_STARTTLS, REP_ACK, &[]);
            self.stage = Stage::StartTls;
            return Ok(Some(Step::StartTls));
        }
        Ok(None)
    }

    /// After [`Step::StartTls`]: what comes from now on came through TLS. The handshake goes on as if no option had
    /// been there (NBD-S2). With a `refusal` the client is told that, whatever it asks. Does nothing at another time.
    pub fn tls_started(&mut self, refusal: Option<String>) {
        if !matches!(self.stage, Stage::StartTls) {
            return;
        }
        self.stage = Stage::Option;
        self.style = HeaderStyle::Simple;
        self.allocation_of = None;
        self.secure = true;
        self.refusal = refusal;
    }

    fn option(&mut self, option: u32, data: Bytes, out: &mut BytesMut) -> Result<Option<Step>, HandshakeError> {
        if option != OPT_ABORT
            && let Some((kind, message)) = self.bar()
        {
            if option == OPT_EXPORT_NAME {
                return Err(HandshakeError::ExportName { message: message.to_string() });
            }
            put_error(out, option, kind, message);
            return Ok(None);
        }
        match option {
            OPT_EXPORT_NAME => {
                if self.style == HeaderStyle::Extended {
                    let message = "not after extended headers".to_string();
                    return Err(HandshakeError::ExportName { message });
                }
                let name = parse_name(&data).map_err(|message| HandshakeError::ExportName { message })?;
                return Ok(Some(self.ask(option, data, &[], name)));
            }
            OPT_ABORT => {
                put_reply(out, option, REP_ACK, &[]);
                self.stage = Stage::Ended;
                return Ok(Some(Step::Aborted));
            }
            OPT_LIST if data.is_empty() => {
                self.stage = Stage::Asked(Asked {
                    option,
                    raw_name: Bytes::new(),
                    plain_name: String::new(),
                    wants_name: false,
                    wants_description: false,
                });
                return Ok(Some(Step::Ask(Question::List)));
            }
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                if self.style == HeaderStyle::Extended {
                    put_error(out, option, REP_ERR_EXT_HEADER_REQD, "extended headers were chosen already");
                } else {
                    self.style = HeaderStyle::Structured;
                    put_reply(out, option, REP_ACK, &[]);
                }
            }
            OPT_EXTENDED_HEADERS if data.is_empty() => {
                self.style = HeaderStyle::Extended;
                put_reply(out, option, REP_ACK, &[]);
            }
            OPT_LIST | OPT_STRUCTURED_REPLY | OPT_EXTENDED_HEADERS => {
                put_error(out, option, REP_ERR_INVALID, "this option takes no data");
            }
            OPT_INFO | OPT_GO => return Ok(self.info(option, data, out)),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.meta_context(option, data, out),
            _ => put_error(out, option, REP_ERR_UNSUP, "unknown option"),
        }
        Ok(None)
    }

    fn ask(&mut self, option: u32, raw_name: Bytes, wanted: &[u16], name: ExportName) -> Step {
        self.stage = Stage::Asked(Asked {
            option,
            raw_name,
            plain_name: name.path(),
            wants_name: wanted.contains(&INFO_NAME),
            wants_description: wanted.contains(&INFO_DESCRIPTION),
        });
        Step::Ask(if option == OPT_INFO { Question::Describe(name) } else { Question::Open(name) })
    }

    fn info(&mut self, option: u32, mut data: Bytes, out: &mut BytesMut) -> Option<Step> {
        let raw_name = take_string(&mut data);
        let wanted: Option<Vec<u16>> = (data.len() >= 2).then(|| data.get_u16()).and_then(|count| {
            (data.len() == 2 * usize::from(count)).then(|| (0..count).map(|_| data.get_u16()).collect())
        });
        let (Some(raw_name), Some(wanted)) = (raw_name, wanted) else {
            put_error(out, option, REP_ERR_INVALID, "malformed option data");
            return None;
        };
        match parse_name(&raw_name) {
            Ok(name) => Some(self.ask(option, raw_name, &wanted, name)),
            Err(message) => {
                put_error(out, option, REP_ERR_UNKNOWN, &message);
                None
            }
        }
    }

    fn meta_context(&mut self, option: u32, mut data: Bytes, out: &mut BytesMut) {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            // "Issuing this command replaces all previously-set metadata contexts (including when this command fails)."
            self.allocation_of = None;
        }
        if self.style == HeaderStyle::Simple {
            return put_error(out, option, REP_ERR_INVALID, "structured replies must be chosen first");
        }
        let malformed = |out: &mut BytesMut| put_error(out, option, REP_ERR_INVALID, "malformed option data");
        let Some(raw_name) = take_string(&mut data) else { return malformed(out) };
        if data.len() < 4 {
            return malformed(out);
        }
        let count = data.get_u32();
        if count > QUERIES_MAX {
            return put_error(out, option, REP_ERR_TOO_BIG, "too many queries");
        }
        let mut chosen = count == 0 && !set;
        for _ in 0..count {
            let Some(query) = take_string(&mut data) else { return malformed(out) };
            chosen |= query == CONTEXT_ALLOCATION.as_bytes() || (!set && &query[..] == b"base:");
        }
        if !data.is_empty() {
            return malformed(out);
        }
        if chosen {
            let id = if set { CONTEXT_ALLOCATION_ID } else { 0 };
            put_reply(out, option, REP_META_CONTEXT, &[&id.to_be_bytes(), CONTEXT_ALLOCATION.as_bytes()]);
            if set {
                self.allocation_of = Some(raw_name);
            }
        }
        put_reply(out, option, REP_ACK, &[]);
    }

    /// Answers [`Question::List`] with names and descriptions, the first [`EXPORTS_LISTED_MAX`] of them. Does nothing
    /// without an open question.
    pub fn answer_list<'a>(&mut self, exports: impl IntoIterator<Item = (&'a str, &'a str)>, out: &mut BytesMut) {
        let Stage::Asked(Asked { option: option @ OPT_LIST, .. }) = self.stage else { return };
        for (name, description) in exports.into_iter().take(EXPORTS_LISTED_MAX) {
            let name = cut(name, STRING_BYTES_MAX).as_bytes();
            let description = cut(description, 256).as_bytes();
            put_reply(out, option, REP_SERVER, &[&(name.len() as u32).to_be_bytes(), name, description]);
        }
        put_reply(out, option, REP_ACK, &[]);
        self.stage = Stage::Option;
    }

    /// Answers [`Question::Describe`] and [`Question::Open`]. `Some` if the transmission phase begins with the next
    /// byte of input. Does nothing without an open question.
    ///
    /// # Errors
    /// A refusal of NBD_OPT_EXPORT_NAME: close the connection.
    pub fn answer_export(
        &mut self,
        answer: Result<&ExportFacts, (RefusalReason, &str)>,
        out: &mut BytesMut,
    ) -> Result<Option<Negotiated>, HandshakeError> {
        let asked = match std::mem::replace(&mut self.stage, Stage::Option) {
            Stage::Asked(asked) if asked.option != OPT_LIST => asked,
            other => {
                self.stage = other;
                return Ok(None);
            }
        };
        let option = asked.option;
        let facts = match answer {
            Ok(facts) => facts,
            Err((_, message)) if option == OPT_EXPORT_NAME => {
                return Err(HandshakeError::ExportName { message: message.to_string() });
            }
            Err((reason, message)) => {
                let kind = match reason {
                    RefusalReason::Unknown => REP_ERR_UNKNOWN,
                    RefusalReason::Policy => REP_ERR_POLICY,
                    RefusalReason::Shutdown => REP_ERR_SHUTDOWN,
                };
                put_error(out, option, kind, message);
                return Ok(None);
            }
        };
        let flags = TransmissionFlags::of_server(self.style, facts.read_only).0;
        let negotiated = Negotiated {
            style: self.style,
            allocation: self.allocation_of.as_ref().is_some_and(|name| *name == asked.raw_name),
        };
        if option == OPT_EXPORT_NAME {
            out.put_u64(facts.size);
            out.put_u16(flags);
            if !self.no_zeroes {
                out.put_bytes(0, EXPORT_NAME_PADDING);
            }
            self.stage = Stage::Ended;
            return Ok(Some(negotiated));
        }
        asked.put_facts(facts, flags, out);
        if option == OPT_INFO {
            return Ok(None);
        }
        self.stage = Stage::Ended;
        Ok(Some(negotiated))
    }
}
