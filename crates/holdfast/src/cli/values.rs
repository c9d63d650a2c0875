//! Values of arguments, and the end of each help.

use crate::exit::EXIT_CODES;
use holdfast_set::recovery::Stores;
use holdfast_set::{BURST_MS_DEFAULT, IOPS_MIN, Limit, Schedule};
use holdfast_types::{ByteSize, MemberId, Name, Owner, Placement};
use std::str::FromStr;
use std::time::Duration;

/// Examples, followed by the exit codes: for `holdfast` itself.
pub fn with_codes(examples: &str) -> String {
    format!("{examples}\n{EXIT_CODES}")
}

/// `NAME=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeArg {
    /// The volume.
    pub name: Name,
    /// Its size.
    pub size: ByteSize,
}

impl FromStr for VolumeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, size) =
            text.split_once('=').ok_or_else(|| format!("found {text:?}, expected NAME=SIZE, such as vol1=1GiB"))?;
        let name = Name::new(name).map_err(|error| error.to_string())?;
        let size: ByteSize = size.parse().map_err(|error: holdfast_types::SizeError| error.to_string())?;
        Ok(Self { name, size })
    }
}

/// `NAME`, or `NAME=HOST,HOST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayArg {
    /// The gateway.
    pub name: Name,
    /// Its DNS names and IP addresses.
    pub hosts: Vec<String>,
}

impl FromStr for GatewayArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, hosts) = text.split_once('=').map_or((text, None), |(name, hosts)| (name, Some(hosts)));
        let name = Name::new(name).map_err(|error| error.to_string())?;
        let hosts: Vec<String> = hosts.into_iter().flat_map(|hosts| hosts.split(',')).map(str::to_string).collect();
        // A role must come from nowhere else.
        let fits = |host: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || ".:-".contains(c);
            !host.is_empty() && host.chars().all(plain) && !host.ends_with("holdfast.internal")
        };
        match hosts.iter().find(|host| !fits(host)) {
            Some(host) => Err(format!("found {host:?}, expected a DNS name or an IP address")),
            None => Ok(Self { name, hosts }),
        }
    }
}

/// Checks `HOST:PORT`.
pub fn address(text: &str) -> Result<String, String> {
    match holdfast_api::host_port(text) {
        Some(_) => Ok(text.to_string()),
        None => Err(format!("found {text:?}, expected HOST:PORT")),
    }
}

/// Reads `m2` or `2`.
pub fn member(text: &str) -> Result<MemberId, String> {
    let digits = text.strip_prefix('m').unwrap_or(text);
    let id = digits.parse().ok().filter(|&id| id != 0);
    id.map(MemberId)
        .ok_or_else(|| format!("found {text:?}, expected a member as `holdfast gateway list` shows it, such as m2"))
}

/// Checks an owner's name.
pub fn owner(text: &str) -> Result<Owner, String> {
    Owner::new(text).map_err(|error| error.to_string())
}

/// Checks the syntax of a store URL. The gateways check whether they can reach it.
pub fn store_url(text: &str) -> Result<String, String> {
    if text.starts_with("w=") {
        let stores = Stores::parse(text).map_err(|error| error.to_string())?;
        return stores.urls().iter().try_for_each(|url| store_url(url).map(drop)).map(|()| text.to_string());
    }
    let good = url::Url::parse(text).is_ok_and(|url| match url.scheme() {
        "s3" => url.has_host(),
        "file" => !url.has_host() && url.path().len() > 1,
        _ => false,
    });
    if good {
        Ok(text.to_string())
    } else {
        Err(format!(
            "found {text:?}, expected s3://BUCKET/PREFIX or file:///DIRECTORY, or for several stores \"w=QUORUM URL URL URL\""
        ))
    }
}

/// As [`store_url`]. Also accepts what `holdfast set list` shows of a set whose stores were changed: `c=2 ...`, and
/// both lists during a change.
pub fn stores_text(text: &str) -> Result<String, String> {
    let placement = Placement::parse(text);
    if placement.next.is_none() && (text.contains(" | ") || text.contains(" => ")) {
        return Err(format!(
            "found {text:?}, expected the stores as `holdfast set list` shows them: \"LIST\", or during a change \"LIST => LIST\""
        ));
    }
    for list in std::iter::once(&placement.stores).chain(placement.next.as_ref().map(|(_, to)| to)) {
        if list.starts_with("c=") {
            let stores = Stores::parse(list).map_err(|error| error.to_string())?;
            stores.urls().iter().try_for_each(|url| store_url(url).map(drop))?;
        } else {
            store_url(list)?;
        }
    }
    Ok(text.to_string())
}

/// Checks the rules of a snapshot schedule.
pub fn schedule(text: &str) -> Result<String, String> {
    text.parse::<Schedule>().map(|_| text.to_string()).map_err(|error| error.to_string())
}

/// Checks a limit of requests per second.
pub fn iops(text: &str) -> Result<u32, String> {
    let iops: u32 = text.parse().map_err(|_| format!("found {text:?}, expected a number"))?;
    alone(Limit { iops, ..Limit::NONE }).map(|()| iops)
}

/// Checks a limit of bytes per second.
pub fn bytes_per_second(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: holdfast_types::SizeError| error.to_string())?;
    alone(Limit { bytes_per_s: size.0, ..Limit::NONE }).map(|()| size)
}

/// Checks the burst of a limit.
pub fn burst(text: &str) -> Result<Duration, String> {
    let burst = crate::duration::parse(text)?;
    let burst_ms = u32::try_from(burst.as_millis()).unwrap_or(u32::MAX);
    let limit = Limit { iops: IOPS_MIN, burst_ms, ..Limit::NONE };
    limit.check().map(|()| burst).map_err(|error| error.to_string())
}

/// Checks one number of a limit; the others may be those of now.
fn alone(limit: Limit) -> Result<(), String> {
    let burst_ms = if limit.is_none() { 0 } else { BURST_MS_DEFAULT };
    Limit { burst_ms, ..limit }.check().map_err(|error| error.to_string())
}

pub fn setting(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    parts
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .ok_or_else(|| format!("found {text:?}, expected KEY=VALUE, such as journal.bound=2GiB"))
}
