//! Spans of a set at its leader (ADR 0078): of what a grant waited for, and of some writes. Without a collector no
//! clock is read, and nothing is noted.

use crate::sequencer::{Moments, Op};
use holdfast_control::set::Lease;
use holdfast_traces::{Attribute, Span, SpanId, TraceId, Traces, Value, Wall};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Name, Term};
use holdfast_volume::entry::OpKind;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Of one set.
pub(crate) struct SetTraces {
    traces: Option<Traces>,
    set: Name,
    led: Mutex<Option<Led>>,
}

/// The term in which this gateway leads.
#[derive(Clone, Copy)]
struct Led {
    term: Term,
    since: Instant,
    /// Its first entry was applied here.
    ready: Option<Instant>,
    /// A grant was given in it.
    granted: bool,
}

/// What a grant waited for.
struct Waits {
    /// The term in which it was given, as this gateway saw it.
    led: Option<Led>,
    /// The owner held the set before, and waits since the gateway that served it is gone.
    continued: bool,
    asked: Instant,
    /// The head allowed an answer.
    looked: Instant,
    granted: Instant,
}

impl Waits {
    /// An owner that continues its lease waits at least since this gateway was elected. For another one, the set may
    /// have been free for long: it waits since it asked.
    fn begin(&self) -> Instant {
        match self.led {
            Some(led) if self.continued && !led.granted => led.since.min(self.asked),
            _ => self.asked,
        }
    }

    /// The first span has the others as its parts.
    fn spans(&self, wall: Wall, trace: TraceId, attributes: Vec<Attribute>) -> Vec<Span> {
        let at = |moment: Instant| wall.of(moment);
        let begin = self.begin();
        let (id, parent, name) = (SpanId::random(), None, "serve");
        let (start_unix_ns, end_unix_ns) = (at(begin), at(self.granted));
        let serve = Span { trace, id, parent, name, start_unix_ns, end_unix_ns, attributes };
        let ready = self.led.and_then(|led| Some((led.since.max(begin), led.ready?)));
        // Led and ready are noted when an event is followed, which may be later than the grant saw them.
        let ready = ready.filter(|(since, ready)| since < ready && *ready <= self.looked);
        let first = ready.map(|(since, ready)| serve.part("serve.first_entry", at(since), at(ready), Vec::new()));
        let may_look = ready.map_or(self.asked, |(_, ready)| ready.max(self.asked));
        let head = serve.part("serve.head", at(may_look), at(self.looked), Vec::new());
        let grant = serve.part("serve.grant", at(self.looked), at(self.granted), Vec::new());
        [serve].into_iter().chain(first).chain([head, grant]).collect()
    }
}

/// A write that may become spans.
pub(crate) struct Noted {
    begun: Instant,
    kind: OpKind,
    bytes: u64,
    moments: Vec<Arc<Moments>>,
}

impl Noted {
    fn spans(&self, wall: Wall, ended: Instant, attributes: Vec<Attribute>) -> Vec<Span> {
        let at = |moment: Instant| wall.of(moment);
        let (trace, id, parent, name) = (TraceId::random(), SpanId::random(), None, "write");
        let (start_unix_ns, end_unix_ns) = (at(self.begun), at(ended));
        let write = Span { trace, id, parent, name, start_unix_ns, end_unix_ns, attributes };
        let mut spans = vec![write.clone()];
        for moments in &self.moments {
            let Some(left) = moments.left() else { continue };
            spans.push(write.part("write.queued", start_unix_ns, at(left.at), Vec::new()));
            let Some((came, id)) = moments.came() else { continue };
            let number = |number: usize| Value::Number(number as u64);
            let attributes = vec![
                ("term", Value::Number(id.term.0)),
                ("index", Value::Number(id.index.0)),
                ("seq", Value::Number(left.seq.0)),
                ("operations", number(left.ops)),
                ("bytes", number(left.bytes)),
            ];
            spans.push(write.part("entry", at(left.at), at(came), attributes));
        }
        spans
    }
}

impl SetTraces {
    pub(super) fn new(traces: Option<Traces>, set: Name) -> Self {
        Self { traces, set, led: Mutex::new(None) }
    }

    /// Now, if anybody wants to know.
    pub(super) fn now(&self) -> Option<Instant> {
        self.traces.as_ref().map(|_| Instant::now())
    }

    /// The term in which this gateway leads, and that of the last entry that was applied here. Called after each event.
    pub(super) fn follow(&self, leading: Option<Term>, applied: Term) {
        let Some(now) = self.now() else { return };
        let mut led = self.led.locked();
        if led.map(|led| led.term) != leading {
            *led = leading.map(|term| Led { term, since: now, ready: None, granted: false });
        }
        if let Some(led) = led.as_mut().filter(|led| led.term == applied) {
            led.ready.get_or_insert(now);
        }
    }

    /// The lease was granted here, and is served. The owner is not named: that of a plain export has a client's
    /// address. Nor does the id of its trace come from it: whoever has the id could try all addresses.
    pub(super) fn granted(&self, lease: &Lease, continued: bool, asked: Option<Instant>, looked: Option<Instant>) {
        let (Some(traces), Some(asked), Some(looked)) = (&self.traces, asked, looked) else { return };
        let led = {
            let mut led = self.led.locked();
            let before = *led;
            *led = before.map(|led| Led { granted: true, ..led });
            before
        };
        let waits = Waits { led, continued, asked, looked, granted: Instant::now() };
        let mut attributes = vec![
            ("set", Value::Text(self.set.to_string())),
            ("epoch", Value::Number(lease.epoch.0)),
            ("continued", Value::Is(continued)),
        ];
        attributes.extend(led.map(|led| ("term", Value::Number(led.term.0))));
        let trace = match lease.plain {
            true => TraceId::random(),
            false => TraceId::of_grant(self.set.as_str(), lease.owner.as_str(), lease.epoch.0),
        };
        traces.record(waits.spans(Wall::now(), trace, attributes));
    }

    /// A write begins, and its operations are about to be pushed. They carry the moments.
    pub(crate) fn begin(&self, ops: &mut [Op]) -> Option<Noted> {
        let begun = self.now()?;
        let kind = ops.first()?.kind;
        let bytes: u64 = ops.iter().map(|op| op.sectors.to_bytes().unwrap_or_default()).sum();
        let moments = ops.iter_mut().map(|op| op.moments.insert(Arc::default()).clone()).collect();
        Some(Noted { begun, kind, bytes, moments })
    }

    /// The write is about to be answered. `volume`: its name, asked for only if the write is recorded.
    pub(crate) fn end(&self, noted: Option<Noted>, epoch: Epoch, volume: impl FnOnce() -> Option<Name>) {
        let (Some(traces), Some(noted)) = (&self.traces, noted) else { return };
        let ended = Instant::now();
        if !traces.wants(ended.saturating_duration_since(noted.begun)) {
            return;
        }
        let kind = match noted.kind {
            OpKind::Write => "write",
            OpKind::Trim => "trim",
            OpKind::Zero => "zero",
        };
        let mut attributes = vec![
            ("set", Value::Text(self.set.to_string())),
            ("epoch", Value::Number(epoch.0)),
            ("operation", Value::Text(kind.to_string())),
            ("bytes", Value::Number(noted.bytes)),
        ];
        attributes.extend(volume().map(|name| ("volume", Value::Text(name.to_string()))));
        traces.record(noted.spans(Wall::now(), ended, attributes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Moments behind the first one, and a reading of both clocks.
    struct Times {
        first: Instant,
        wall: Wall,
    }

    impl Times {
        fn new() -> Self {
            // Long ago: a moment that is later than the reading of the clocks counts as that.
            Self { first: Instant::now() - Duration::from_secs(20), wall: Wall::now() }
        }

        fn at(&self, ms: u64) -> Instant {
            self.first + Duration::from_millis(ms)
        }

        /// Name, begin and end of each span, in milliseconds; all of them parts of the first.
        fn shown(&self, spans: &[Span]) -> Vec<(&'static str, u64, u64)> {
            let first = self.wall.of(self.first);
            let ms = |unix_ns: u64| unix_ns.saturating_sub(first).div_ceil(1_000_000);
            let parts =
                spans.iter().skip(1).all(|span| span.parent == Some(spans[0].id) && span.trace == spans[0].trace);
            assert!(parts && spans[0].parent.is_none(), "{spans:?}");
            spans.iter().map(|span| (span.name, ms(span.start_unix_ns), ms(span.end_unix_ns))).collect()
        }

        fn of_grant(&self, led: Option<Led>, continued: bool) -> Vec<(&'static str, u64, u64)> {
            let (asked, looked, granted) = (self.at(300), self.at(500), self.at(600));
            let waits = Waits { led, continued, asked, looked, granted };
            self.shown(&waits.spans(self.wall, TraceId::random(), Vec::new()))
        }

        fn led(&self, since: u64, ready: u64, granted: bool) -> Option<Led> {
            Some(Led { term: Term(4), since: self.at(since), ready: Some(self.at(ready)), granted })
        }
    }

    #[test]
    fn an_owner_that_continues_waits_since_the_election() {
        let times = Times::new();
        let (head, grant) = (("serve.head", 400, 500), ("serve.grant", 500, 600));
        let found = times.of_grant(times.led(100, 400, false), true);
        assert_eq!(found, [("serve", 100, 600), ("serve.first_entry", 100, 400), head, grant]);
        // It asked after all that.
        let found = times.of_grant(times.led(100, 200, false), true);
        let head = ("serve.head", 300, 500);
        assert_eq!(found, [("serve", 100, 600), ("serve.first_entry", 100, 200), head, grant]);
    }

    #[test]
    fn others_wait_since_they_asked() {
        let times = Times::new();
        let grant = ("serve.grant", 500, 600);
        let plain = [("serve", 300, 600), ("serve.head", 300, 500), grant];
        assert_eq!(times.of_grant(times.led(100, 200, false), false), plain, "the set may have been free for long");
        assert_eq!(times.of_grant(times.led(100, 200, true), true), plain, "it was served in this term before");
        assert_eq!(times.of_grant(None, true), plain);
        assert_eq!(times.of_grant(times.led(550, 550, false), false), plain, "it was noted later than it was");
        let found = times.of_grant(times.led(100, 400, false), false);
        let expected = [("serve", 300, 600), ("serve.first_entry", 300, 400), ("serve.head", 400, 500), grant];
        assert_eq!(found, expected, "of the wait for the first entry, the part behind its question");
    }

    #[test]
    fn nothing_is_noted_without_a_collector() {
        let traced = SetTraces::new(None, Name::new("demo").unwrap());
        traced.follow(Some(Term(3)), Term(3));
        assert!(traced.now().is_none() && traced.led.locked().is_none() && traced.begin(&mut []).is_none());
    }
}
