//! Loads of several values at a time: from memory, one entry on disk, or one fetch of the store.

use crate::ReadCache;
use crate::admission::Demand;
use crate::key::BlockKey;
use crate::ring::Found;
use crate::several::{Fetched, Loaded, Several, Source, Wanted, pick};
use std::sync::atomic::Ordering::Relaxed;

impl<V: Clone + Send + Sync + 'static> ReadCache<V> {
    /// The values, in the order of `wanted`: from memory, or from one entry on disk, or from the store. From disk, only
    /// these are opened. What was fetched is opened as a whole: it cost a request.
    ///
    /// Callers for the same entry share one load, each opens its own values of it, and callers for different entries of
    /// the same whole share one fetch. A failure is not shared: the next waiting caller tries by itself.
    ///
    /// # Errors
    /// The error of the source, for what was fetched.
    pub async fn get_several<S: Source<V>>(
        &self,
        demand: Demand,
        wanted: &Wanted<'_>,
        source: &S,
    ) -> Result<Vec<V>, S::Error> {
        let flight = self.inner.loads.join(wanted.entry);
        let mut flew = false;
        let loaded = flight
            .cell()
            .get_or_try_init(|| {
                flew = true;
                self.load_several(demand, wanted, source)
            })
            .await?;
        if let Some(values) = pick(&loaded.values, wanted.values).or_else(|| self.open_loaded(wanted, source, loaded)) {
            if !flew {
                self.inner.counts.shared.fetch_add(1, Relaxed);
            }
            return Ok(values);
        }
        // That load found its own values in memory, or the entry is damaged where these are.
        let loaded = self.load_several(demand, wanted, source).await?;
        if let Some(values) = pick(&loaded.values, wanted.values) {
            return Ok(values);
        }
        // And that fetch found the values of its own caller in memory.
        let found = self.fetch_apart(demand, wanted, source).await?;
        let Some(values) = pick(&found, wanted.values) else {
            panic!("R9: {wanted:?} is not in what was fetched for it");
        };
        Ok(values)
    }

    /// All of them, if all are in memory. Not counted.
    fn in_memory(&self, keys: &[BlockKey]) -> Option<Several<V>> {
        keys.iter().map(|key| Some((*key, self.inner.memory.get(key)?.value().clone()))).collect()
    }

    /// Like `in_memory`, for a caller that did not find all of them before: another load has brought them meanwhile.
    fn several_here(&self, keys: &[BlockKey]) -> Option<Several<V>> {
        let here = self.in_memory(keys)?;
        self.inner.counts.shared.fetch_add(1, Relaxed);
        Some(here)
    }

    /// The values, from an entry that another caller loaded for other ones. `None` if there is none, or if it is
    /// damaged where these are; then a load by this caller finds that too, and reports it.
    fn open_loaded<S: Source<V>>(&self, wanted: &Wanted<'_>, source: &S, loaded: &Loaded<V>) -> Option<Vec<V>> {
        let sealed = loaded.sealed.as_ref()?;
        // A third caller may have opened them.
        if let Some(here) = self.in_memory(wanted.values) {
            return pick(&here, wanted.values);
        }
        let values: Several<V> = wanted.values.iter().copied().zip(source.open(sealed).ok()?).collect();
        self.keep_in_memory(&values);
        pick(&values, wanted.values)
    }

    async fn load_several<S: Source<V>>(
        &self,
        demand: Demand,
        wanted: &Wanted<'_>,
        source: &S,
    ) -> Result<Loaded<V>, S::Error> {
        // A load that ended before this caller joined has left its values in memory.
        if let Some(values) = self.several_here(wanted.values) {
            return Ok(Loaded { values, sealed: None });
        }
        if let Some(disk) = self.disk()
            && let Some(found) = disk.load(&wanted.entry).await
            && let Some(loaded) = self.open_found(demand, wanted, source, found)
        {
            return Ok(loaded);
        }
        let flight = self.inner.fetches.join(wanted.whole);
        let mut flew = false;
        let fetched = flight
            .cell()
            .get_or_try_init(|| {
                flew = true;
                async {
                    if let Some(here) = self.several_here(wanted.values) {
                        return Ok(here);
                    }
                    self.fetch_apart(demand, wanted, source).await
                }
            })
            .await
            .cloned();
        if !flew {
            self.inner.counts.shared.fetch_add(1, Relaxed);
        }
        fetched.map(|values| Loaded { values, sealed: None })
    }

    /// `None` if the entry is damaged.
    fn open_found<S: Source<V>>(
        &self,
        demand: Demand,
        wanted: &Wanted<'_>,
        source: &S,
        found: Found,
    ) -> Option<Loaded<V>> {
        let (counts, disk) = (&self.inner.counts, self.disk()?);
        let Ok(values) = source.open(&found.sealed) else {
            // Not an error of the store's copy: that one is requested next, and its failure would be reported.
            counts.rejected.fetch_add(1, Relaxed);
            let BlockKey { object, number, block } = wanted.entry;
            tracing::warn!(%object, number, block, "cache disk: damaged bytes, fetching again");
            disk.forget(&wanted.entry);
            return None;
        };
        counts.disk_hits.fetch_add(1, Relaxed);
        let sealed = found.sealed.clone();
        if disk.keep_longer(wanted.entry, found, demand) {
            counts.rewritten_bytes.fetch_add(sealed.len() as u64, Relaxed);
        }
        let values: Several<V> = wanted.values.iter().copied().zip(values).collect();
        self.keep_in_memory(&values);
        Some(Loaded { values, sealed: Some(sealed) })
    }

    async fn fetch_apart<S: Source<V>>(
        &self,
        demand: Demand,
        wanted: &Wanted<'_>,
        source: &S,
    ) -> Result<Several<V>, S::Error> {
        let counts = &self.inner.counts;
        counts.fetches.fetch_add(1, Relaxed);
        let fetched = match source.fetch().await {
            Ok(sealed) => source.take_apart(sealed),
            Err(error) => Err(error),
        };
        let Fetched { entries, values } = fetched.inspect_err(|_| {
            counts.failures.fetch_add(1, Relaxed);
        })?;
        let values: Several<V> = values.into();
        // Before the flight ends, so that every caller finds one of the two.
        self.keep_in_memory(&values);
        if let Some(disk) = self.disk() {
            let (goes_in, bytes) = disk.fetched_apart(wanted, entries, demand);
            let fate = if goes_in { &counts.admitted_bytes } else { &counts.left_out_bytes };
            fate.fetch_add(bytes, Relaxed);
        }
        Ok(values)
    }

    fn keep_in_memory(&self, values: &Several<V>) {
        for (key, value) in values.iter() {
            self.inner.memory.insert(*key, value.clone());
        }
    }
}

#[cfg(test)]
mod tests;
