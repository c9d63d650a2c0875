//! Baseline for uploads (`cargo xtask bench storage`): aws-sdk-s3 puts one buffer repeatedly under new keys, several at
//! a time. No retries, no conditions, no checksums beyond the signature, nothing of `holdfast-store`. Path style and
//! plain HTTP. It is in this crate because no other crate may use the SDK. It is a program, not an example, so that it
//! needs no dependencies that `holdfast` does not have. It is not part of a release.
//!
//! `bare_put ENDPOINT BUCKET PREFIX IN_FLIGHT OBJECT_BYTES OBJECTS`, keys from `AWS_ACCESS_KEY_ID` and
//! `AWS_SECRET_ACCESS_KEY`; prints one line of JSON.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{BehaviorVersion, Builder, Credentials, Region, RequestChecksumCalculation};
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::error::Error;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The buffer: data that neither compression nor deduplication can make smaller.
fn noise(len: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Processor time of this process so far, in seconds.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields after the name, which may contain anything.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
    Some(f64::from(ticks(11)? + ticks(12)?) / 100.0)
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, bucket, prefix, in_flight, bytes, objects] = args.as_slice() else {
        return Err("usage: bare_put ENDPOINT BUCKET PREFIX IN_FLIGHT OBJECT_BYTES OBJECTS".into());
    };
    let (in_flight, objects): (usize, usize) = (in_flight.parse()?, objects.parse()?);
    let body = noise(bytes.parse()?);
    let id = std::env::var("AWS_ACCESS_KEY_ID")?;
    let secret = std::env::var("AWS_SECRET_ACCESS_KEY")?;
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(id, secret, None, None, "bare_put"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .retry_config(RetryConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .force_path_style(true)
        .endpoint_url(endpoint)
        .build();
    let client = Client::from_conf(config);
    let put = |number: usize| {
        let request = client.put_object().bucket(bucket).key(format!("{prefix}/{number:06}"));
        request.body(ByteStream::from(body.clone())).send()
    };
    let (begun, before) = (Instant::now(), processor_seconds());
    stream::iter(0..objects).map(put).buffer_unordered(in_flight).try_for_each(|_| async { Ok(()) }).await?;
    let took: Duration = begun.elapsed();
    let used = processor_seconds().zip(before).map(|(now, before)| now - before);
    let used = used.map_or_else(|| "null".to_owned(), |used| used.to_string());
    let (bytes, seconds) = (body.len() * objects, took.as_secs_f64());
    println!("{{\"bytes\":{bytes},\"seconds\":{seconds},\"processor_seconds\":{used}}}");
    Ok(())
}
