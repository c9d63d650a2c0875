//! The client's side: [`Handshake`], then [`encode_request`] for requests and a [`ReplyDecoder`] for replies.

mod handshake;
mod transmission;

pub use handshake::{Aim, ClientError, Connected, Handshake, ListedExport, Outcome};
pub use transmission::{CommandOut, Event, ReplyDecoder, ReplyError, RequestOut, RequestTooLong, encode_request};
