(ns jepsen.holdfast.nemesis
  "All faults by name, in one nemesis. It knows which nodes are down, stopped or cut
  off, and reports with each operation whether the set must be served now
  (:served?), and could be served all the time of the operation (:unbroken?). The
  availability checker uses these.

  A fault is begun, held and ended repeatedly, with pauses in between. NAME+NAME
  begins several together; of NAME,NAME,NAME each comes once in a round, in a new
  random order for every round. The fault and its nodes follow from the seed; its
  time, and the serving gateway then, do not."
  (:require [clojure.set :as set]
            [clojure.string :as str]
            [clojure.tools.logging :refer [info]]
            [jepsen [control :as c]
                    [db :as jdb]
                    [generator :as gen]
                    [nemesis :as nemesis]
                    [net :as net]
                    [util :as util :refer [majority]]]
            [jepsen.holdfast [clocks :as clocks]
                             [copies :as copies]
                             [db :as db]
                             [disks :as disks]
                             [logs :as logs]
                             [rolling :as rolling]
                             [s3 :as s3]
                             [weather :as weather]])
  (:import (java.util ArrayList Collections Random)))

(def more
  "Faults in files of their own. {name {:doc, :begin, :end}}: (begin test dice state)
  makes it and returns [state what], (end test state) undoes it and does the same;
  `what` is a map, in which :hit? false means that it did not happen."
  (merge clocks/faults copies/faults disks/faults rolling/faults s3/faults weather/faults))

(def once "Faults that come once in a run." #{"corrupt" "truncate" "restored" "twice"})

(def faults
  (merge
   (update-vals more :doc)
  {"partition-halves"  "a majority and a minority, drawn anew each time"
   "partition-primary" "the serving gateway alone, the others together"
   "partition-ring"    "each gateway hears a majority, no two the same one"
   "partition-bridge"  "one gateway hears everybody, the others only that one"
   "partition-one-way" "one gateway hears nobody, and is heard by all"
   "kill"              "SIGKILL of one gateway, later started again"
   "kill-primary"      "SIGKILL of the serving one, later started again"
   "restart-all"       "SIGKILL of all at once, started again after a moment"
   "pause"             "SIGSTOP of one gateway for longer than its lease"
   "pause-primary"     "SIGSTOP of the serving one for longer than its lease"
   "pause-all"         "SIGSTOP of all for longer than their leases"
   "corrupt"           "one gateway killed, a bit of its journal flipped, started; once, and always the same gateway"
   "truncate"          "the same with a file of its journal cut off in the middle"}))

(def sets
  "Names for several faults in turn."
  {"mix" (str/join "," ["kill-primary" "partition-primary" "pause-primary"
                        "partition-one-way" "restart-all" "partition-halves"
                        "kill+partition-halves" "pause-all" "partition-ring"])
   "members" "drain,replace"
   "mix-2"   (str/join "," ["switchover" "clock-drift" "loss" "s3-down" "drain"
                          "clock-jump" "upgrade" "delay" "s3-503"
                          "clock-drift+kill-primary" "s3-slow+restart-all" "replace"])})

(defn choices
  "The faults that a --nemesis draws from, none for \"none\"."
  [nemesis]
  (->> (str/split nemesis #",")
       (mapcat #(str/split (get sets % %) #","))
       (remove #{"none"})
       vec))

(defn known?
  [nemesis]
  (every? #(contains? faults %)
          (mapcat #(str/split % #"\+") (choices nemesis))))

(defn single
  "The faults that a --nemesis can make, each by itself."
  [nemesis]
  (set (mapcat #(str/split % #"\+") (choices nemesis))))

(defn fitted
  "Options with the needs of the faults; throws if these are not available."
  [{:keys [nemesis netns between clock disks] :as opts}]
  (let [wanted   (single nemesis)
        of-store (set/intersection wanted (set (keys s3/faults)))
        clocks   (set/intersection wanted (set (keys clocks/faults)))
        cut      (set/intersection wanted (set (keys disks/faults)))
        proxied  (set/intersection wanted #{"s3-503" "delay"})
        refuse   (fn [faults why]
                   (throw (IllegalArgumentException.
                            (str "--nemesis: found "
                                 (str/join ", " (sort faults)) ", " why))))]
    (when (and (seq of-store) (not netns))
      (refuse of-store "expected --netns with it: the server is ours to stop"))
    (when (and (seq proxied) (not between))
      (refuse proxied "expected --between PATH with it"))
    (when (and (seq clocks) (not clock))
      (refuse clocks "expected --clock DIR with it"))
    (when (and (seq cut) (not (and disks netns)))
      (refuse cut "expected --netns and --disks PATH with it"))
    (cond-> opts
      ; Mounted disks are slower, and not every machine has them: only for faults that need them.
      (empty? cut) (dissoc :disks)
      (seq of-store) (assoc :store "s3")
      ; Changed clock functions only in runs that change the clocks.
      (empty? clocks) (dissoc :clock))))

(defn- draw [^Random dice coll] (nth coll (.nextInt dice (count coll))))

(defn- shuffled
  [^Random dice coll]
  (let [l (ArrayList. ^java.util.Collection coll)]
    (Collections/shuffle l dice)
    (vec l)))

(defn- one-way
  "Nobody's packets reach node: replies do not either, so no connection of its
  own works."
  [nodes node]
  {node (set (remove #{node} nodes))})

(defn- grudge
  [test dice fault]
  (let [nodes   (:nodes test)
        primary #(or (first (db/serving-nodes test)) (draw dice nodes))]
    (case fault
      "partition-halves"  (nemesis/complete-grudge
                            (nemesis/bisect (shuffled dice nodes)))
      "partition-primary" (nemesis/complete-grudge
                            (nemesis/split-one (primary) nodes))
      "partition-ring"    (nemesis/majorities-ring nodes)
      "partition-bridge"  (nemesis/bridge (shuffled dice nodes))
      "partition-one-way" (one-way nodes (draw dice nodes)))))

(defn served?
  "Is there a gateway that runs and can talk, both ways, with gateways that run
  and make a majority with it? Where a fault makes that a matter of luck (:unsure),
  nothing is expected."
  [nodes {:keys [down stopped spoilt grudge unsure]}]
  (let [up   (set/difference (set nodes) down stopped spoilt)
        cut? (fn [a b] (or (contains? (set (get grudge a)) b)
                           (contains? (set (get grudge b)) a)))]
    (boolean
      (and (empty? unsure)
           (some (fn [a] (<= (majority (count nodes))
                             (count (remove #(cut? a %) up))))
                 up)))))

(def ^:private takes-one
  "Faults that have one gateway at a time away while they are made or ended, and give
  it back themselves."
  #{"corrupt" "truncate" "restored" "twice" "upgrade" "replace"})

(defn unbroken?
  "Could a majority talk all the time while something changed the state from `before`
  to `after`: the begin or end of a fault, or the end of all lasting ones (nil)? A
  change that only breaks more, or only repairs, never leaves less than the worse of
  both. A fault that takes one gateway away meanwhile leaves a majority if there is
  one without any further gateway."
  [nodes fault before after]
  (and (served? nodes before)
       (served? nodes after)
       (or (not (takes-one fault))
           (every? #(served? nodes (update before :down conj %)) nodes))))

(defn- on! [test nodes f]
  (c/on-nodes test nodes (fn [t n] (f t n))))

(defn- begin!
  "Does it; gives [state what]."
  [test dice state fault]
  (let [nodes   (:nodes test)
        target  #(if (str/ends-with? fault "-primary")
                   (or (first (db/serving-nodes test)) (draw dice nodes))
                   (draw dice nodes))
        database (:db test)]
    (cond
      (more fault)
      (let [[s what] ((:begin (more fault)) test dice state)]
        [(update s :lasting conj fault) what])

      (str/starts-with? fault "partition")
      (let [g (grudge test dice fault)]
        (net/drop-all! test g)
        [(assoc state :grudge g) g])

      (#{"kill" "kill-primary" "restart-all"} fault)
      (let [ns (if (= "restart-all" fault) nodes [(target)])]
        (on! test ns (partial jdb/kill! database))
        [(update state :down into ns) ns])

      (#{"pause" "pause-primary" "pause-all"} fault)
      (let [ns (if (= "pause-all" fault) nodes [(target)])]
        (on! test ns (partial jdb/pause! database))
        [(update state :stopped into ns) ns])

      (#{"corrupt" "truncate"} fault)
      (if (seq (:spoilt state))
        [state {:done-already (first (:spoilt state)), :hit? false}]
        (let [n (draw dice nodes)
              _ (disks/mark! test [n] logs/spoilt)
              r (on! test [n] (fn [t n]
                                (jdb/kill! database t n)
                                (let [what ((if (= "corrupt" fault) db/corrupt! db/truncate!) t n)]
                                  (jdb/start! database t n)
                                  what)))]
          [(update state :spoilt conj n) {:flipped n, :what (get r n)}])))))

(defn- end-more!
  "Ends those of `more` that last: [state {fault what} unbroken?]."
  [test state]
  (reduce (fn [[s done whole?] fault]
            (if-let [end (:end (more fault))]
              (let [[after what] (end test s)]
                [after (assoc done fault what)
                 (and whole? (unbroken? (:nodes test) fault s after))])
              [s done whole?]))
          [(assoc state :lasting #{}) {} true]
          (:lasting state)))

(defn- hit?
  "Did every one of these faults happen?"
  [what]
  (not-any? #(and (map? %) (false? (:hit? %))) (vals what)))

(defn- end-all!
  "Ends whatever lasts."
  [test {:keys [down stopped grudge] :as state}]
  (let [database (:db test)]
    (when grudge (net/heal! (:net test) test))
    (when (seq stopped) (on! test stopped (partial jdb/resume! database)))
    (when (and (seq down) (not= "leave-dead" (:lie test)))
      (on! test down (partial jdb/start! database)))
    (assoc state :grudge nil, :stopped #{}, :down #{})))

(def ^:private last-end
  "What the last `:end` of a run is asked for with."
  :last)

(defrecord Nemesis [dice state]
  nemesis/Reflection
  (fs [_] #{:begin :end :alive})

  nemesis/Nemesis
  (setup! [this test]
    (net/heal! (:net test) test)
    (disks/lie! test)
    this)

  (invoke! [_ test op]
    (case (:f op)
      :begin
      (let [nodes (:nodes test)
            [what whole?]
            (reduce (fn [[done whole?] fault]
                      (let [before   @state
                            [s what] (begin! test dice before fault)]
                        (reset! state s)
                        [(assoc done fault what)
                         (and whole? (unbroken? nodes fault before s))]))
                    [{} true] (str/split (:value op) #"\+"))
            lie?  (= "outage" (:lie test))]
        (assoc op :value what
               :hit?      (hit? what)
               :served?   (or lie? (served? nodes @state))
               :unbroken? (or lie? whole?)))

      :end
      (if (and (= "outage" (:lie test)) (not= last-end (:value op)))
        (assoc op :value :ended, :hit? true, :served? true, :unbroken? true)
        (let [[ended what whole?] (end-more! test @state)
              s (end-all! test ended)]
          (reset! state s)
          (assoc op
                 :value     (if (seq what) what :ended)
                 :hit?      (hit? what)
                 :served?   (served? (:nodes test) s)
                 :unbroken? (and whole? (unbroken? (:nodes test) nil ended s)))))

      ; At the end: a gateway that ended by itself broke an invariant (R11), or
      ; was spoilt and knows it (R9).
      :alive
      (assoc op :value (c/on-nodes test (fn [t n] (boolean (db/pid t n))))
             :spoilt (:spoilt @state))))

  (teardown! [_ test]
    (let [[s _] (end-more! test @state)]
      (reset! state (end-all! test s)))))

(defn- rounds
  "Every choice once, in an order drawn anew, for ever."
  [dice choices]
  (lazy-seq (concat (shuffled dice choices) (rounds dice choices))))

(defn package
  "The package of a test: faults of `choices` in turn, made by (make dice); :faults
  are the single ones among them."
  ([{:keys [nemesis] :as opts}]
   (package opts (choices nemesis)
            (fn [dice]
              (->Nemesis dice (atom {:down #{}, :stopped #{}, :spoilt #{}
                             :unsure #{}, :lasting #{}})))))
  ([{:keys [interval hold seed]} choices make]
   {:nemesis         (make (Random. (inc seed)))
    :faults          (set (mapcat #(str/split % #"\+") choices))
    :generator       (when (seq choices)
                       (mapcat (fn [fault]
                                 [(gen/sleep interval)
                                  {:type :info, :f :begin, :value fault}
                                  (gen/sleep hold)
                                  {:type :info, :f :end}])
                               (rounds (Random. seed) choices)))
    :final-generator (gen/nemesis {:type :info, :f :end, :value last-end})
    :alive-generator (gen/nemesis (gen/once {:type :info, :f :alive}))
    :perf            #{{:name "fault", :start #{:begin}, :stop #{:end}
                        :color "#E9A4A0"}}}))
