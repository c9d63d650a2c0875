(ns jepsen.holdfast.final
  "The final reads, and the verdict if they fail.

  First all faults are undone, and a moment passes. Then the reads are retried for
  `patience-s`. If a read never succeeds, the verdict depends on the run's
  knowledge. If all faults ended, a majority can talk and every gateway runs, then
  acknowledged data cannot be read back, which breaks a rule like a read without it
  (R1). If the run does not know that, the verdict is :unknown, with the reason."
  (:require [clojure.set :as set]
            [clojure.string :as str]
            [jepsen [generator :as gen]
                    [history :as h]]))

(def patience-s
  "A gateway that starts votes after its old lease has run out, and serves a second or
  two later; on a machine that has no processor to spare, silences of 13 s after a
  restart were seen. Several times that."
  90)

(def pause-s
  "Between two tries of one reader: a refusal may come at once."
  1/2)

(defn until-ok
  "This operation again and again until it works, or `tries` times."
  ([op] (gen/until-ok (gen/delay pause-s (gen/repeat op))))
  ([tries op] (gen/until-ok (gen/delay pause-s (gen/repeat tries op)))))

(defn patiently
  "Whatever of `gen` is asked for within `patience-s`. One that was begun is waited
  for, however long it reads."
  [gen]
  (gen/time-limit patience-s gen))

(defn by-one
  "Retries this operation by one client, one with a long timeout, until it succeeds."
  [op]
  (gen/clients (gen/on-threads #{0} (patiently (until-ok op)))))

(defn by-each-its-own
  "These operations, shared out among `threads`, each until it works or five times; but
  the first one of them alone and patiently before that, so that refusals that come at
  once do not use up all tries before anybody serves."
  [threads ops]
  (gen/phases
    (by-one (first ops))
    (->> (range threads)
         (map (fn [t]
                (gen/on-threads #{t} (map (partial until-ok 5)
                                          (take-nth threads (drop t ops))))))
         (apply gen/any)
         patiently
         gen/clients)))

(defn standing
  "How the run stood when the last reads were asked for: {:since index, :why-not text}.
  :since is when the nemesis had put everything right for the last time, as far as it
  did. Without :why-not, everything must be there to be read."
  [history]
  (let [ops    (vec (h/remove h/client-op? history))
        ; Pairs of invocation and completion: the nemesis does one operation at a time.
        turns  (->> ops (filter #(#{:begin :end} (:f %))) (partition-all 2) vec)
        end    (second (peek turns))
        broke  (some (fn [[asked done]] (when-not (contains? done :served?) asked)) turns)
        alive  (->> ops (filter #(and (= :alive (:f %)) (map? (:value %)))) last)
        dead   (->> (:value alive) (remove val) (map key)
                    (remove (set (:spoilt alive))) sort)]
    {:since   (:index end -1)
     :why-not (cond
                (empty? turns)
                "nobody made faults here, or put them right"
                ; No later :end undoes the half-done work of a failed one.
                broke
                (str "the nemesis failed at " (name (:f broke)) " " (:value broke)
                     ": what lasts since is not known")
                (not= :end (:f end))
                "the last fault was never ended"
                (not (:served? end))
                "after the last fault no majority of the gateways could talk"
                (nil? alive)
                "nobody looked whether the gateways run"
                (seq dead)
                (str "a gateway had ended by itself: " (str/join ", " dead)))}))

(defn judge
  "Were all of `wanted` read at the end? (of op) returns the wanted one of an
  operation, nil if it is no such read. If nothing was read of one, that is wrong
  unless there is an excuse; a partial result is unknown, since its reader may have
  run out of time."
  [history wanted of]
  (let [wanted   (set wanted)
        {:keys [since why-not]} (standing history)
        late     (filter #(< since (:index %)) (h/client-ops history))
        about    (fn [ops] (into #{} (comp (keep of) (filter wanted)) ops))
        answered (about (filter h/ok? late))
        asked    (about late)
        unread   (set/difference wanted answered)]
    (cond-> {:valid?   (cond (empty? unread)  true
                             (seq answered)   :unknown
                             (empty? asked)   :unknown
                             why-not          :unknown
                             :else            false)
             :wanted   (count wanted)
             :asked    (count asked)
             :answered (count answered)}
      (seq unread)
      (assoc :unread (vec (take 10 (sort-by str unread)))
             :why    (cond
                       (seq answered)
                       (str (count unread) " of " (count wanted) " were not read in the end")
                       (empty? asked)
                       "nobody asked in the end"
                       why-not
                       (str "nothing was read in the end, and that may be the run's own doing: "
                            why-not)
                       :else
                       "everything was put right and all gateways ran, and nothing could be read back")))))
