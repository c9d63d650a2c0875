//! The server's side: [`Handshake`], then a [`RequestDecoder`] for requests and a [`ReplyQueue`] for replies.

mod handshake;
mod reply;
mod request;

pub use handshake::{
    EXPORTS_LISTED_MAX, ExportFacts, GREETING_BYTES, Handshake, HandshakeError, Negotiated, OPTION_BYTES_MAX,
    OPTIONS_MAX, QUERIES_MAX, Question, RefusalReason, Step, TlsMode,
};
pub use reply::{EXTENTS_PER_REPLY_MAX, ReadPart, ReplyQueue, ReplyTo};
pub use request::{Command, Decoded, ProtocolError, Request, RequestDecoder};
