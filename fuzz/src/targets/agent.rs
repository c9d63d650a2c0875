//! What the hosts of a set send each other over HTTP: answers of whoever listens at an agent's address, and the header
//! by which the sender of a command proves that it has the token.

use holdfast_agent::fuzz::{answer, is_proven};

/// Behind a first byte 255 stands a header, else an answer.
pub(super) fn messages(data: &[u8]) -> bool {
    match data {
        [u8::MAX, header @ ..] => {
            let proven = std::str::from_utf8(header).is_ok_and(is_proven);
            assert!(!proven, "a header proves a token that is not in it");
            false
        }
        _ => answer(data).is_some(),
    }
}

pub(super) fn all_messages() -> Vec<Vec<u8>> {
    let view = r#"{"name":"db2","set":"tank","state":"standby","since_unix_ms":1700000000000,"role":"standby","why":"",
        "paused":false,"database":"gone","attach":"serving","obstacle":"","version":"1","epoch":0,"lease_owner":"db1",
        "cluster_answers":true,"renewed_ms_ago":7,"mode":"automatic","nofailover":false,"priority":100,
        "host_id":"00000001","multihost":true,"peers":{"db1":"10.0.0.1:8008"},"scheduled":{"at_unix_ms":5},
        "facts":{"postgresql":"15.14","uid":105,"zfs":"2.1","zfs_features":["lz4"],"unix_ms":1700000000000}}"#;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nholdfast-proof: 00\r\ncontent-length:";
    let answers = ["{}", "{\"message\":\"no\"}", view].map(|body| format!("{head} {}\r\n\r\n{body}", body.len()));
    answers.map(String::into_bytes).into()
}
