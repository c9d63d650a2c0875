//! Option haggling of the client: asks for the best wanted headers and accepts what the server grants.
//! Before that, it asks for TLS if its caller wants it (NBD-S3).

use crate::wire::*;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Longest option reply that we read, in bytes.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Most option replies in one handshake.
const REPLIES_MAX: u32 = 4096;
/// Most names and descriptions in a server's list, in bytes (NBD-N1).
const LISTED_BYTES_MAX: usize = 8 << 20;

/// Purpose of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Begin transmission with this export (the name as it goes over the wire).
    Go(String),
    /// Like `Go`, by NBD_OPT_EXPORT_NAME, like old clients: no headers are negotiated, and a refusal closes the
    /// connection.
    GoOldStyle(String),
    /// Describe this export and leave.
    Info(String),
    /// List the exports and leave.
    List,
}

/// The negotiated properties, and the server's description of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags of the export.
    pub flags: TransmissionFlags,
    /// Headers of the transmission phase.
    pub style: HeaderStyle,
    /// Block sizes, where the server named them.
    pub block_sizes: Option<BlockSizes>,
    /// Id of the `base:allocation` context, if it was chosen.
    pub allocation: Option<u32>,
    /// The server's name for the export, if it sent one.
    pub name: Option<String>,
    /// For people, where the server said something.
    pub description: Option<String>,
}

/// An export in a server's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedExport {
    /// Its name.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}

/// How a handshake ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Transmission begins with the next byte ([`Aim::Go`]).
    Connected(Connected),
    /// [`Aim::Info`]. The goodbye is in the output; close after sending it.
    Described(Connected),
    /// [`Aim::List`]. The goodbye is in the output; close after sending it.
    Listed(Vec<ListedExport>),
    /// Only the first half, after [`Handshake::over_tls`]: do the TLS handshake, then call [`Handshake::tls_started`].
    StartTls,
}

/// A handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Not an NBD server of our kind.
    #[error("server greeting: found {found:#018x}, expected {expected:#018x}")]
    Magic {
        /// Value received.
        found: u64,
        /// Value expected.
        expected: u64,
    },
    /// A server of before 2011.
    #[error("server greeting: found flags {found:#x}, expected fixed newstyle")]
    TooOld {
        /// Its flags.
        found: u16,
    },
    /// The server refused; final for this server and export.
    #[error("refused: {message}")]
    Refused {
        /// Its message, or the error's number.
        message: String,
    },
    /// The server cannot serve that now; another one may.
    #[error("not served here: {message}")]
    NotHere {
        /// Its message.
        message: String,
    },
    /// The server has no TLS, or refuses it (NBD-S3).
    #[error("found a server without TLS ({message}), expected TLS: nothing was sent in plain text")]
    NoTls {
        /// Its message, or the error's number.
        message: String,
    },
    /// The server has no use for a client in plain text.
    #[error("found a server that demands TLS, and this client has no certificate")]
    TlsRequired,
    /// NBD-S3.
    #[error("found {found} bytes in plain text behind the server's agreement to TLS, expected TLS")]
    BehindStartTls {
        /// How many.
        found: usize,
    },
    /// A reply to another option, malformed, or far too long.
    #[error("option reply: found {found}, expected {expected}")]
    Malformed {
        /// Value received.
        found: u64,
        /// What was expected.
        expected: &'static str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Reply(u32),
    StartTls,
    ExportNameAnswer,
    Ended,
}

/// The client's half of the handshake.
#[derive(Debug)]
pub struct Handshake {
    aim: Aim,
    wanted: HeaderStyle,
    wants_allocation: bool,
    wants_tls: bool,
    stage: Stage,
    no_zeroes: bool,
    replies: u32,
    export: Option<(u64, u16)>,
    connected: Connected,
    listed: Vec<ListedExport>,
    listed_bytes: usize,
}

fn option(out: &mut BytesMut, option: u32, parts: &[&[u8]]) {
    out.put_u64(MAGIC_OPTION);
    out.put_u32(option);
    out.put_u32(parts.iter().map(|part| part.len() as u32).sum());
    parts.iter().for_each(|part| out.put_slice(part));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A reply of the server to one of our options.
struct OptionReply {
    asked: u32,
    kind: u32,
    data: Bytes,
}

impl OptionReply {
    fn failed(&self) -> bool {
        self.kind & REP_ERROR != 0
    }

    fn malformed(&self, expected: &'static str) -> ClientError {
        ClientError::Malformed { found: u64::from(self.kind), expected }
    }

    fn unfit(&self) -> ClientError {
        self.malformed("a reply that fits the option")
    }

    /// Why the server refuses.
    fn refusal(&self) -> ClientError {
        let message = self.message();
        match self.kind {
            REP_ERR_SHUTDOWN => ClientError::NotHere { message },
            _ => ClientError::Refused { message },
        }
    }

    fn message(&self) -> String {
        if self.data.is_empty() { format!("error {}", self.kind & !REP_ERROR) } else { text(&self.data) }
    }
}

impl Handshake {
    /// A handshake that asks for `wanted` headers at best, and for `base:allocation` if it gets chunked replies.
    pub fn new(aim: Aim, wanted: HeaderStyle, wants_allocation: bool) -> Self {
        let connected = Connected {
            size: 0,
            flags: TransmissionFlags(0),
            style: HeaderStyle::Simple,
            block_sizes: None,
            allocation: None,
            name: None,
            description: None,
        };
        Self {
            aim,
            wanted,
            wants_allocation,
            wants_tls: false,
            stage: Stage::Greeting,
            no_zeroes: false,
            replies: 0,
            export: None,
            connected,
            listed: Vec::new(),
            listed_bytes: 0,
        }
    }

    /// Like `new`, through TLS or not at all (NBD-S3).
    #[must_use]
    pub fn over_tls(self) -> Self {
        Self { wants_tls: true, ..self }
    }

    /// After [`Outcome::StartTls`], once the TLS handshake is done and the server has proved who it is. Appends the
    /// next bytes to send to `out`. Does nothing at another time.
    pub fn tls_started(&mut self, out: &mut BytesMut) {
        if self.stage == Stage::StartTls {
            self.begin(out);
        }
    }

    /// Consumes `input` as far as possible and appends the bytes to send to `out`. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Close the connection.
    pub fn step(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Option<Outcome>, ClientError> {
        loop {
            match self.stage {
                Stage::Greeting => {
                    if !self.greeting(input, out)? {
                        return Ok(None);
                    }
                }
                Stage::Reply(asked) => {
                    let Some(reply) = self.whole_reply(asked, input)? else { return Ok(None) };
                    if asked == OPT_STARTTLS {
                        return self.agreed(&reply, input.len()).map(Some);
                    }
                    if let Some(outcome) = self.reply(reply, out)? {
                        self.stage = Stage::Ended;
                        return Ok(Some(outcome));
                    }
                }
                Stage::ExportNameAnswer => {
                    let bytes = 10 + if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING };
                    if input.len() < bytes {
                        return Ok(None);
                    }
                    let mut raw = input.split_to(bytes);
                    self.connected.size = raw.get_u64();
                    self.connected.flags = TransmissionFlags(raw.get_u16());
                    self.stage = Stage::Ended;
                    return Ok(Some(Outcome::Connected(self.connected.clone())));
                }
                Stage::StartTls | Stage::Ended => return Ok(None),
            }
        }
    }

    /// `false`: more bytes are needed.
    fn greeting(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<bool, ClientError> {
        let Some(mut raw) = input.get(..18) else { return Ok(false) };
        for expected in [MAGIC_GREETING, MAGIC_OPTION] {
            let found = raw.get_u64();
            if found != expected {
                return Err(ClientError::Magic { found, expected });
            }
        }
        let flags = raw.get_u16();
        input.advance(18);
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(ClientError::TooOld { found: flags });
        }
        self.no_zeroes = flags & FLAG_NO_ZEROES != 0;
        out.put_u32(u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)));
        if self.wants_tls {
            self.ask(OPT_STARTTLS, &[], out);
        } else {
            self.begin(out);
        }
        Ok(true)
    }

    /// The reply to NBD_OPT_STARTTLS. `behind`: the number of bytes that came with it and do not belong to it.
    fn agreed(&mut self, reply: &OptionReply, behind: usize) -> Result<Outcome, ClientError> {
        match reply.kind {
            REP_ACK if behind > 0 => Err(ClientError::BehindStartTls { found: behind }),
            REP_ACK => {
                self.stage = Stage::StartTls;
                Ok(Outcome::StartTls)
            }
            REP_ERR_SHUTDOWN => Err(reply.refusal()),
            _ if reply.failed() => Err(ClientError::NoTls { message: reply.message() }),
            _ => Err(reply.malformed("an acknowledgement")),
        }
    }

    /// Takes the reply to `asked` off `input`. `None`: more bytes are needed.
    fn whole_reply(&mut self, asked: u32, input: &mut BytesMut) -> Result<Option<OptionReply>, ClientError> {
        let Some(mut raw) = input.get(..20) else { return Ok(None) };
        let (magic, echoed, kind, len) = (raw.get_u64(), raw.get_u32(), raw.get_u32(), raw.get_u32());
        if magic != MAGIC_OPTION_REPLY {
            return Err(ClientError::Malformed { found: magic, expected: "an option reply's magic" });
        }
        if echoed != asked {
            return Err(ClientError::Malformed { found: u64::from(echoed), expected: "our own option" });
        }
        if len > REPLY_BYTES_MAX {
            return Err(ClientError::Malformed { found: u64::from(len), expected: "a shorter reply" });
        }
        if input.len() < 20 + len as usize {
            return Ok(None);
        }
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(ClientError::Malformed { found: REPLIES_MAX.into(), expected: "fewer replies" });
        }
        input.advance(20);
        let data = input.split_to(len as usize).freeze();
        Ok(Some(OptionReply { asked, kind, data }))
    }

    fn ask(&mut self, number: u32, parts: &[&[u8]], out: &mut BytesMut) {
        option(out, number, parts);
        self.stage = Stage::Reply(number);
    }

    fn begin(&mut self, out: &mut BytesMut) {
        match (&self.aim, self.wanted) {
            (Aim::GoOldStyle(_), _) => self.old_style(out),
            (Aim::List, _) => self.ask(OPT_LIST, &[], out),
            (_, HeaderStyle::Extended) => self.ask(OPT_EXTENDED_HEADERS, &[], out),
            (_, HeaderStyle::Structured) => self.ask(OPT_STRUCTURED_REPLY, &[], out),
            (_, HeaderStyle::Simple) => self.go(out),
        }
    }

    fn name(&self) -> &str {
        match &self.aim {
            Aim::Go(name) | Aim::GoOldStyle(name) | Aim::Info(name) => name,
            Aim::List => "",
        }
    }

    fn old_style(&mut self, out: &mut BytesMut) {
        option(out, OPT_EXPORT_NAME, &[self.name().as_bytes()]);
        self.stage = Stage::ExportNameAnswer;
    }

    fn context_or_go(&mut self, out: &mut BytesMut) {
        if !self.wants_allocation || self.connected.style == HeaderStyle::Simple {
            return self.go(out);
        }
        let name = self.name().to_string();
        let (len, one) = ((name.len() as u32).to_be_bytes(), 1u32.to_be_bytes());
        let query = CONTEXT_ALLOCATION.as_bytes();
        let query_len = (query.len() as u32).to_be_bytes();
        self.ask(OPT_SET_META_CONTEXT, &[&len, name.as_bytes(), &one, &query_len, query], out);
    }

    fn go(&mut self, out: &mut BytesMut) {
        let name = self.name().to_string();
        let number = if matches!(self.aim, Aim::Info(_)) { OPT_INFO } else { OPT_GO };
        let mut wanted = BytesMut::new();
        wanted.put_u16(3);
        [INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE].iter().for_each(|info| wanted.put_u16(*info));
        let len = (name.len() as u32).to_be_bytes();
        self.ask(number, &[&len, name.as_bytes(), &wanted], out);
    }

    fn reply(&mut self, reply: OptionReply, out: &mut BytesMut) -> Result<Option<Outcome>, ClientError> {
        let (kind, failed) = (reply.kind, reply.failed());
        match reply.asked {
            _ if kind == REP_ERR_TLS_REQD => return Err(ClientError::TlsRequired),
            OPT_EXTENDED_HEADERS if failed => self.ask(OPT_STRUCTURED_REPLY, &[], out),
            OPT_EXTENDED_HEADERS | OPT_STRUCTURED_REPLY if kind == REP_ACK || failed => {
                if !failed {
                    let extended = reply.asked == OPT_EXTENDED_HEADERS;
                    self.connected.style = if extended { HeaderStyle::Extended } else { HeaderStyle::Structured };
                }
                self.context_or_go(out);
            }
            OPT_EXTENDED_HEADERS | OPT_STRUCTURED_REPLY => return Err(reply.malformed("an acknowledgement")),
            OPT_SET_META_CONTEXT if kind == REP_ACK || failed => {
                if failed {
                    self.connected.allocation = None;
                }
                self.go(out);
            }
            OPT_SET_META_CONTEXT if kind == REP_META_CONTEXT => self.context(reply)?,
            OPT_GO if kind == REP_ERR_UNSUP && self.connected.style != HeaderStyle::Extended => self.old_style(out),
            _ if failed => return Err(reply.refusal()),
            OPT_LIST => return self.list(reply, out),
            OPT_INFO | OPT_GO => return self.describe(reply, out),
            _ => return Err(reply.unfit()),
        }
        Ok(None)
    }

    /// A successful reply to NBD_OPT_SET_META_CONTEXT.
    fn context(&mut self, mut reply: OptionReply) -> Result<(), ClientError> {
        if reply.data.len() < 4 {
            return Err(reply.malformed("a context's id and name"));
        }
        let id = reply.data.get_u32();
        if reply.data == CONTEXT_ALLOCATION.as_bytes() {
            self.connected.allocation = Some(id);
        }
        Ok(())
    }

    /// A successful reply to NBD_OPT_LIST.
    fn list(&mut self, mut reply: OptionReply, out: &mut BytesMut) -> Result<Option<Outcome>, ClientError> {
        match reply.kind {
            REP_SERVER => {
                self.listed_bytes += reply.data.len();
                if self.listed_bytes > LISTED_BYTES_MAX {
                    return Err(ClientError::Malformed { found: self.listed_bytes as u64, expected: "a shorter list" });
                }
                let len = if reply.data.len() >= 4 { reply.data.get_u32() as usize } else { usize::MAX };
                if len > reply.data.len() {
                    return Err(reply.malformed("a name within its reply"));
                }
                let name = text(&reply.data.split_to(len));
                self.listed.push(ListedExport { name, description: text(&reply.data) });
                Ok(None)
            }
            REP_ACK => {
                option(out, OPT_ABORT, &[]);
                Ok(Some(Outcome::Listed(std::mem::take(&mut self.listed))))
            }
            _ => Err(reply.unfit()),
        }
    }

    /// A successful reply to NBD_OPT_INFO or NBD_OPT_GO.
    fn describe(&mut self, reply: OptionReply, out: &mut BytesMut) -> Result<Option<Outcome>, ClientError> {
        match reply.kind {
            REP_INFO => {
                let whole = self.info(reply.data.clone());
                whole.ok_or_else(|| reply.malformed("a whole information item"))?;
                Ok(None)
            }
            REP_ACK => {
                let (size, flags) = self.export.ok_or_else(|| reply.malformed("the export's size first"))?;
                self.connected.size = size;
                self.connected.flags = TransmissionFlags(flags);
                let connected = self.connected.clone();
                if reply.asked == OPT_GO {
                    return Ok(Some(Outcome::Connected(connected)));
                }
                option(out, OPT_ABORT, &[]);
                Ok(Some(Outcome::Described(connected)))
            }
            _ => Err(reply.unfit()),
        }
    }

    fn info(&mut self, mut data: Bytes) -> Option<()> {
        if data.len() < 2 {
            return None;
        }
        match data.get_u16() {
            INFO_EXPORT if data.len() == 10 => self.export = Some((data.get_u64(), data.get_u16())),
            INFO_BLOCK_SIZE if data.len() == 12 => {
                self.connected.block_sizes = Some(BlockSizes {
                    minimum: data.get_u32(),
                    preferred: data.get_u32(),
                    payload_max: data.get_u32(),
                });
            }
            INFO_EXPORT | INFO_BLOCK_SIZE => return None,
            INFO_NAME => self.connected.name = Some(text(&data)),
            INFO_DESCRIPTION => self.connected.description = Some(text(&data)),
            _ => {}
        }
        Some(())
    }
}
