//! The client's side: [`Handshake`], then [`encode_request`] for what goes out and a [`ReplyDecoder`] for what comes in.

mod handshake;
mod transmission;

pub use handshake::{Aim, ClientError, Connected, Handshake, ListedExport, Outcome};
pub use transmission::{CommandOut, Event, ReplyDecoder, ReplyError, RequestOut, RequestTooLong, encode_request};
