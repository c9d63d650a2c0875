(ns jepsen.holdfast.checks
  "Checks that every workload shares: how long nothing got through, was enough
  done for the other verdicts to mean anything, do all gateways still run."
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [jepsen [checker :as checker]
                    [history :as h]
                    [store :as store]
                    [util :as util]]
            [jepsen.holdfast [logs :as logs]]))

(defn- seconds [nanos] (/ (double nanos) 1e9))

(defn expected-served
  "Periods [from to] in nanoseconds in which a majority could talk without a break.
  During a nemesis operation nothing is expected, unless the nemesis reports a
  majority all the time (:unbroken?): then the time before, during and after it is
  one period. Otherwise no silence could be longer than the pause between two
  faults, even if no gateway ever came back."
  [history end]
  (let [turns (->> (h/remove h/client-op? history)
                   (filter #(#{:begin :end} (:f %)))
                   ; Pairs of invocation and completion: the nemesis does one operation at a time.
                   (partition-all 2))
        [since windows]
        (reduce (fn [[since windows] [asked done]]
                  (if (and since (:served? done) (:unbroken? done))
                    [since windows]
                    [(when (:served? done) (:time done))
                     (cond-> windows since (conj [since (:time asked)]))]))
                [0 []] turns)]
    (cond-> windows since (conj [since end]))))

(defn gaps
  "Of each window, the longest time without any of `times` in it."
  [windows times]
  (for [[from to] windows]
    (let [inside (filter #(<= from % to) times)
          edges  (concat [from] inside [to])]
      (reduce max (map - (rest edges) edges)))))

(def noticed
  "Length of a silence in nanoseconds that counts as an outage."
  1000000000)

(def allowed-s
  "Default limit of an outage while there is a majority. The promise is two seconds
  for a takeover, but these runs share their CPUs with compilers, and a busy machine
  breaks no rule: 11 s were seen between two faults, and 13 s on a machine that
  stalled with gateways and clients. The limit is more than twice that. It is long
  enough for every client to ask at least twice, as each waits at most 9 s for an
  answer and 3 s for a serving gateway; and short enough to be exceeded, since a run
  of 60 s whose gateways do not come back from the first fault is silent for some 50
  s. (The two figures were measured in periods that ended with each nemesis
  operation; longer silences could not be seen then.)"
  30.0)

(defn availability
  "The longest time without a success of fs `progress` while a majority could talk
  without a break, and the total of outages, faults included. A silence of more than
  `within` seconds makes the run invalid (see `allowed-s`). On a stalled machine
  clients do not ask either; :longest-unasked-s shows that."
  [{:keys [progress within]}]
  (reify checker/Checker
    (check [_ test history _]
      (let [client  (h/client-ops history)
            ; After the last invocation no progress is expected.
            end     (->> client
                         (filter #(and (h/invoke? %) (progress (:f %))))
                         (map :time) (reduce max 0))
            times   (->> client
                         (filter #(and (= :ok (:type %)) (progress (:f %))))
                         (mapv :time))
            windows (->> (expected-served history end)
                         (map (fn [[from to]] [from (min to end)]))
                         (filter (fn [[from to]] (< from to))))
            longest (seconds (reduce max 0 (gaps windows times)))
            start   (or (:time (first client)) 0)
            asked   (->> client (filter h/invoke?) (map :time)
                         (filter #(<= start % end)))
            silent  (->> (map - (concat times [end]) (concat [start] times))
                         (filter #(< noticed %)))]
        {:valid?            (or (nil? within) (<= longest within))
         :longest-silence-s longest
         :allowed-s         within
         :without-service-s (seconds (reduce + silent))
         :outages           (count silent)
         :longest-unasked-s (seconds (reduce max 0 (map - (rest asked) asked)))
         :lasted-s          (seconds (- end start))
         :windows           (count windows)
         :expected-s        (seconds (reduce + (map #(- (second %) (first %))
                                                    windows)))}))))

(defn- contended
  "How many completed operations had another one beside them."
  [client]
  (loop [ops client, running 0, busy #{}, n 0]
    (if-let [op (first ops)]
      (if (= :invoke (:type op))
        (let [running (inc running)]
          (recur (rest ops) running
                 (if (< 1 running) (conj busy (:process op)) busy) n))
        (recur (rest ops) (dec running) (disj busy (:process op))
               (if (or (< 1 running) (busy (:process op))) (inc n) n)))
      n)))

(defn coverage
  "Too few successes of a sort, none while a fault lasted and a majority could
  talk, too few faults, too little at the same time: then the other verdicts mean
  little, and the run's is unknown: no pass, and no broken rule either. `needs` is
  {f successes}."
  [{:keys [needs faults? once? time-limit cycle-s]}]
  (reify checker/Checker
    (check [_ test history _]
      (let [client  (h/client-ops history)
            oks     (filter #(= :ok (:type %)) client)
            by-f    (frequencies (map :f oks))
            begun   (->> (h/remove h/client-op? history)
                         (filter #(and (= :begin (:f %)) (contains? % :served?))))
            ; A nemesis that reports no effect made no fault.
            missed  (->> (h/remove h/client-op? history)
                         (filter #(false? (:hit? %)))
                         count)
            made    (- (count begun) missed)
            during  (let [windows (loop [ops   (h/remove h/client-op? history)
                                         since nil, out []]
                                    (if-let [op (first ops)]
                                      (cond (and (= :begin (:f op)) (:served? op))
                                            (recur (rest ops) (:time op) out)
                                            (and since (= :end (:f op)))
                                            (recur (rest ops) nil
                                                   (conj out [since (:time op)]))
                                            :else (recur (rest ops) since out))
                                      out))]
                      {:windows (count windows)
                       :ok (count (filter (fn [op]
                                            (some (fn [[a b]] (<= a (:time op) b))
                                                  windows))
                                          oks))})
            beside  (contended client)
            wanted  (cond (not faults?) 0
                          once?         1
                          :else         (max 1 (quot (quot time-limit cycle-s) 2)))
            lacks   (cond-> []
                      true
                      (into (for [[f n] needs :let [got (get by-f f 0)]
                                  :when (< got n)]
                              (str got " successful " (name f) ", needed " n)))
                      (< made wanted)
                      (conj (str "fewer than " wanted " faults"
                                 (when (pos? missed) (str ", " missed " missed"))))
                      (and (pos? (:windows during)) (zero? (:ok during)))
                      (conj "no success while a fault lasted and a majority could talk")
                      (< beside (quot (reduce max (vals needs)) 2))
                      (conj "too little at the same time"))]
        {:valid?       (if (empty? lacks) true :unknown)
         :lacks        lacks
         :needed       needs
         :ok           by-f
         :attempted    (count (filter h/invoke? client))
         :unknown      (count (filter #(= :info (:type %)) client))
         :contended    beside
         :faults       made
         :missed       missed
         :during-faults during}))))

(defn alive
  "No gateway ended by itself, but for one whose journal was spoilt: it may say
  so and stay away (R9)."
  []
  (reify checker/Checker
    (check [_ _ history _]
      (let [op   (->> (h/remove h/client-op? history)
                      (filter #(and (= :alive (:f %)) (map? (:value %))))
                      last)
            dead (->> (:value op) (remove val) (map key)
                      (remove (set (:spoilt op))) sort vec)]
        {:valid? (and (some? op) (empty? dead))
         :looked? (some? op)
         :dead   dead
         :spoilt (:spoilt op)}))))

(defn impostors
  "A gateway with an old copy of its disk is refused, or repaired, with a log line
  (R9). Of a gateway and its twin one is refused. If neither was refused during the
  fault, that is only reported: no acknowledged write is at risk while the rules
  hold, which the workload checks."
  []
  (reify checker/Checker
    (check [_ _ history _]
      (let [ends   (->> (h/remove h/client-op? history)
                        (filter #(and (= :end (:f %)) (map? (:value %))))
                        (map :value))
            of     (fn [fault] (filter #(contains? % :refused?) (keep #(get % fault) ends)))
            silent (remove :refused? (of "restored"))]
        {:valid?   (empty? silent)
         :restored (vec (of "restored"))
         :twins    (vec (of "twice"))
         :unrefused (count (remove :refused? (of "twice")))}))))

(defn log
  "No panic, no assertion, no broken rule in any gateway's log that the faults do not
  explain. Unknown where there is no log at all."
  [faults file]
  (reify checker/Checker
    (check [_ test _history _]
      ; Hosts of PostgreSQL have no such file.
      (let [logs  (for [node (:nodes test)
                        :let [f (io/file (store/path test node file))]
                        :when (.exists f)]
                    [node f])
            found (vec (for [[node f] logs
                             ; In this encoding every byte is a character: a torn line does not end the reading.
                             line (with-open [in (io/reader f :encoding "ISO-8859-1")]
                                    (logs/alarms faults (line-seq in)))]
                         {:node node, :line line}))]
        {:valid?  (cond (seq found)   false
                        (empty? logs) :unknown
                        :else         true)
         :logs    (mapv first logs)
         :count   (count found)
         :matches (vec (take 100 found))}))))

(defn informative
  "A checker whose verdict does not count."
  [c]
  (reify checker/Checker
    (check [_ test history opts]
      (assoc (checker/check c test history opts) :valid? true))))

(defn slim
  "Of an independent checker's many results keeps those that are not valid."
  [c]
  (reify checker/Checker
    (check [_ test history opts]
      (let [r (checker/check c test history opts)]
        (-> r
            (assoc :keys (count (:results r)))
            (update :results #(into {} (remove (comp true? :valid? val)) %)))))))

(defn run-facts
  "What was run, so that results.edn can be read alone."
  [opts]
  (reify checker/Checker
    (check [_ test history _]
      (merge {:valid?      true
              :history-ops (count history)
              :gateways    (count (:nodes test))}
             (select-keys opts [:workload :nemesis :seed :time-limit :store :lie
                                :concurrency :rate :hold :interval])))))
