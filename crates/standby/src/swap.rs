//! Replaces one slot by the other: the last step of a refresh (STANDBY-U3).

/// Operations on a slot that a swap needs.
pub trait Place {
    /// Whether it serves, as far as can be told without a query.
    fn is_up(&self) -> bool;
    /// Stops its PostgreSQL.
    async fn quiet(&self) -> Result<(), String>;
    /// Starts it where clients reach it, and waits until it answers.
    async fn serve(&self) -> Result<(), String>;
}

/// Puts `new` in the place of `old` and stores that with `note`. If it cannot be stored, the swap is undone: the state
/// would name the old slot, and the next refresh would take the new one down and delete its snapshot while it serves.
///
/// # Errors
/// The reason. The old slot serves again; if it does not, the error says so.
pub async fn swap<P: Place, T>(
    old: Option<&P>,
    new: &P,
    note: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let served = old.filter(|old| old.is_up());
    if let Some(old) = old {
        old.quiet().await?;
    }
    let why = match new.serve().await {
        Ok(()) => match note() {
            Ok(noted) => return Ok(noted),
            Err(why) => format!("the name of the serving copy cannot be stored: {why}"),
        },
        Err(why) => why,
    };
    if let Err(still) = new.quiet().await {
        return Err(format!("{why}; {still}"));
    }
    if let Some(old) = served
        && let Err(lost) = old.serve().await
    {
        return Err(format!("{why}; and the old PostgreSQL does not start again: {lost}"));
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Fake<'a> {
        name: &'static str,
        up: AtomicBool,
        starts: bool,
        done: &'a Mutex<Vec<String>>,
    }

    impl<'a> Fake<'a> {
        fn new(name: &'static str, up: bool, starts: bool, done: &'a Mutex<Vec<String>>) -> Self {
            Self { name, up: AtomicBool::new(up), starts, done }
        }

        fn did(&self, what: &str) {
            self.done.lock().unwrap().push(format!("{what} {}", self.name));
        }
    }

    impl Place for Fake<'_> {
        fn is_up(&self) -> bool {
            self.up.load(Ordering::Relaxed)
        }

        async fn quiet(&self) -> Result<(), String> {
            self.did("quiet");
            self.up.store(false, Ordering::Relaxed);
            Ok(())
        }

        async fn serve(&self) -> Result<(), String> {
            self.did("serve");
            self.up.store(self.starts, Ordering::Relaxed);
            if self.starts { Ok(()) } else { Err(format!("{} does not start", self.name)) }
        }
    }

    #[tokio::test]
    async fn a_swap_that_cannot_be_kept_is_undone() {
        let done = Mutex::default();
        let (old, new) = (Fake::new("old", true, true, &done), Fake::new("new", false, true, &done));
        let full = || Err::<(), _>("no space left on device".to_string());
        let why = swap(Some(&old), &new, full).await.unwrap_err();
        assert!(why.contains("no space left"), "{why}");
        assert_eq!((old.is_up(), new.is_up()), (true, false), "what the state names serves");
        assert_eq!(*done.lock().unwrap(), ["quiet old", "serve new", "quiet new", "serve old"]);
        // The first copy of all: there is no old slot.
        assert!(swap(None, &new, full).await.is_err());
        assert!(!new.is_up());
    }

    #[tokio::test]
    async fn it_is_kept_once_the_new_one_serves() {
        let done = Mutex::default();
        let (old, new) = (Fake::new("old", true, true, &done), Fake::new("new", false, true, &done));
        assert_eq!(swap(Some(&old), &new, || Ok(new.is_up())).await, Ok(true));
        assert_eq!((old.is_up(), new.is_up()), (false, true));
        let (old, bad) = (Fake::new("old", true, true, &done), Fake::new("bad", false, false, &done));
        let why = swap(Some(&old), &bad, || -> Result<(), String> { panic!("it does not serve") }).await.unwrap_err();
        assert!(why.contains("bad does not start"), "{why}");
        assert!(old.is_up());
        // A slot that did not serve before is not started in this case.
        let (down, bad) = (Fake::new("down", false, true, &done), Fake::new("bad", false, false, &done));
        assert!(swap(Some(&down), &bad, || Ok(())).await.is_err());
        assert!(!down.is_up());
    }
}
