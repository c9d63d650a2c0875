//! `holdfast store`: checks stores directly. Contacts no gateway.

use super::console::tell;
use super::store_access::KEYS_FROM;
use crate::cli::{CheckArgs, Common, StoreArgs, StoreCommand};
use crate::exit::CliError;
use crate::output;
use futures_util::future::join_all;
use holdfast_gateway::checks::{CHECK_LIMIT, CheckError, CheckReport, check_store, urls_of};
use serde::Serialize;
use std::time::Duration;

/// A store URL with the result of its check.
pub type Checked = (String, Result<CheckReport, CheckError>);

#[derive(Debug, Serialize)]
struct Row {
    store: String,
    /// `null` if it is unknown.
    fit: Option<bool>,
    /// Duration of a small write.
    put_ms: Option<f64>,
    /// Duration of a small read.
    get_ms: Option<f64>,
    /// The source of the keys that were used, their id and end.
    credentials: Option<String>,
    error: Option<String>,
}

impl Row {
    fn of((store, outcome): &Checked) -> Self {
        let ms = |took: fn(&CheckReport) -> Duration| {
            outcome.as_ref().ok().map(|report| (took(report).as_secs_f64() * 1e4).round() / 10.0)
        };
        let fit = match outcome {
            Ok(_) => Some(true),
            Err(CheckError::Unfit { .. }) => Some(false),
            Err(CheckError::Store(_)) => None,
        };
        let error = outcome.as_ref().err().map(ToString::to_string);
        let credentials = outcome.as_ref().ok().and_then(|report| report.credentials.clone());
        let (put_ms, get_ms) = (ms(|report| report.put), ms(|report| report.get));
        Self { store: store.clone(), fit, put_ms, get_ms, credentials, error }
    }
}

/// Runs the command.
pub async fn run(common: &Common, command: StoreCommand) -> Result<(), CliError> {
    let StoreCommand::Check(CheckArgs { stores, access }) = command;
    let checked = check_all(&stores, &access, false, common.timeout()).await?;
    let rows: Vec<Row> = checked.iter().map(Row::of).collect();
    output::show(common.output, &serde_json::json!({ "stores": rows }), || table(&rows))?;
    verdict(&checked)
}

/// Checks all given stores in parallel.
pub async fn check_all(
    stores: &[String],
    access: &StoreArgs,
    existing: bool,
    limit: Duration,
) -> Result<Vec<Checked>, CliError> {
    let mut urls: Vec<String> = Vec::new();
    for text in stores {
        for url in urls_of(text).map_err(|error| CliError::usage("").because(&error))? {
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
    }
    let file = access.credentials_file.as_deref();
    let checks = urls.into_iter().map(|url| async move {
        let outcome = check_store(&url, file, existing, limit).await;
        (url, outcome)
    });
    Ok(join_all(checks).await)
}

/// The error with the store's URL, which the error of an unfit store contains already.
fn words(url: &str, error: &CheckError) -> String {
    match error {
        CheckError::Unfit { .. } => error.to_string(),
        CheckError::Store(_) => format!("{url}: {error}"),
    }
}

/// The most severe result: unfit, then refused, then no answer.
fn verdict(checked: &[Checked]) -> Result<(), CliError> {
    let said = |which: fn(&CheckError) -> bool| -> Option<String> {
        let errors = checked.iter().filter_map(|(url, outcome)| Some((url, outcome.as_ref().err()?)));
        let texts: Vec<String> = errors.filter(|(_, e)| which(e)).map(|(url, e)| words(url, e)).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    };
    if let Some(text) = said(|error| matches!(error, CheckError::Unfit { .. })) {
        return Err(CliError::failed(text).next("use another store: sets cannot be created there"));
    }
    if let Some(text) = said(|error| !error.is_undecided()) {
        return Err(CliError::failed(text).next(KEYS_FROM));
    }
    match said(CheckError::is_undecided) {
        Some(text) => Err(CliError::unreachable(text)
            .next("check the URL and the store, then run it again; --timeout allows more time")),
        None => Ok(()),
    }
}

fn table(rows: &[Row]) -> String {
    let ms = |took: Option<f64>| took.map_or(String::new(), |ms| format!("{ms}ms"));
    let below = rows;
    let rows = rows.iter().map(|row| {
        let fit = match row.fit {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        [row.store.clone(), fit.to_string(), ms(row.put_ms), ms(row.get_ms), row.error.clone().unwrap_or_default()]
    });
    let mut text = output::table_with_messages(["STORE", "FIT", "PUT", "GET", "ERROR"], rows, &[4], 1);
    for row in below {
        if let Some(credentials) = &row.credentials {
            text.push_str(&format!("\n{}: credentials: {credentials}", row.store));
        }
    }
    text
}

/// Checks the stores before a recovery raises generations in them: without conditional PUTs the raise would fence
/// nobody. A store that does not answer is skipped: a write quorum is enough, and the raise itself fails if it does not
/// reach one.
pub async fn check_before_raise(common: &Common, access: &StoreArgs, stores: &[String]) -> Result<(), CliError> {
    let checked = check_all(stores, access, true, CHECK_LIMIT).await?;
    for text in admitted(&checked)? {
        tell(common, &text);
    }
    Ok(())
}

/// Notes on stores that could not be checked; refused if a store is unfit.
fn admitted(checked: &[Checked]) -> Result<Vec<String>, CliError> {
    let mut unchecked = Vec::new();
    for (url, outcome) in checked {
        match outcome {
            Ok(_) => {}
            Err(error @ CheckError::Unfit { .. }) => {
                let next = "nothing was changed; copy the objects to another store and recover from there";
                return Err(CliError::refused(error.to_string()).next(next));
            }
            Err(error) => unchecked.push(format!("continuing without a check of {}", words(url, error))),
        }
    }
    Ok(unchecked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use std::path::Path;

    fn fit() -> Checked {
        let (put, get) = (Duration::from_micros(12_340), Duration::from_millis(5));
        ("s3://good/p".into(), Ok(CheckReport { place: "s3://good/p/".into(), put, get, credentials: None }))
    }

    fn unfit() -> Checked {
        let place = "s3://bad/p/".into();
        let error = CheckError::Unfit { place, found: "a PUT", expected: "412", next: "use another store" };
        ("s3://bad/p".into(), Err(error))
    }

    /// Refused when it is opened.
    async fn denied() -> Checked {
        let url = "file:///nonexistent/store".to_string();
        let outcome = check_store(&url, None::<&Path>, true, CHECK_LIMIT).await;
        (url, outcome)
    }

    #[tokio::test]
    async fn the_worst_of_several_stores_is_what_the_command_ends_with() {
        assert_eq!(verdict(&[fit()]), Ok(()));
        let error = verdict(&[fit(), denied().await, unfit()]).unwrap_err();
        let text = "s3://bad/p/ does not do what sets rely on: found a PUT, expected 412; use another store";
        assert_eq!((error.exit, error.message.as_str()), (Exit::Failed, text));
        let error = verdict(&[denied().await, fit()]).unwrap_err();
        assert_eq!(error.exit, Exit::Failed);
        assert!(error.message.starts_with("file:///nonexistent/store: not checked: open "), "{}", error.message);
    }

    #[tokio::test]
    async fn a_table_has_a_line_for_each_store() {
        let checked = [fit(), unfit(), denied().await];
        let rows: Vec<Row> = checked.iter().map(Row::of).collect();
        assert_eq!(rows.iter().map(|row| row.fit).collect::<Vec<_>>(), [Some(true), Some(false), None]);
        let text = table(&rows);
        assert!(text.contains("12.3ms  5ms") && text.contains("unknown"), "{text}");
        assert!(text.contains("s3://bad/p: s3://bad/p/ does not do what sets rely on: found"), "{text}");
    }

    /// A recovery continues without an unreachable store, and refuses one that cannot fence.
    #[tokio::test]
    async fn nothing_is_raised_in_a_store_that_ignores_conditions() {
        assert_eq!(admitted(&[fit()]), Ok(Vec::new()));
        let said = admitted(&[denied().await, fit()]).unwrap();
        assert!(
            said.len() == 1 && said[0].starts_with("continuing without a check of file:///nonexistent"),
            "{said:?}"
        );
        let error = admitted(&[denied().await, unfit()]).unwrap_err();
        assert_eq!(error.exit, Exit::Refused);
        assert!(error.next.unwrap().starts_with("nothing was changed"));
    }
}
