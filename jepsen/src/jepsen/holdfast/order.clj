(ns jepsen.holdfast.order
  "Order (R4): after a crash or a failover, and in a snapshot, the content is a
  prefix of the writes, over all volumes of the set.

  Each writer numbers its blocks 1, 2, 3 ... and writes them in batches, sixteen in
  flight on one connection. Each batch goes to the next volume, and only after the
  one before was answered. A gateway begins the requests of a connection in the
  order of the wire, so the numbers are the order of R4, though answers come in any
  order. After an unclear result a writer reopens its connections (which fences the
  old ones), reads all its blocks back and reports them; it continues with unused
  numbers.

  The checker: the content is exactly what the numbers up to some m leave, with m
  not below the last answered one. Numbers above m never come back (R6).

  Writers share a lease with a token. A writer that finds it dead acquires it again,
  by force.

  At times one of them takes a snapshot of the set and reads all writers' blocks in
  it, and again in an older one, at whichever gateway answers. Of each writer it
  must show a prefix, with everything acknowledged before the call and nothing begun
  after its answer; of all writers together, everything acknowledged before one of
  the shown writes was begun; and the same at each reading."
  (:require [clojure.string :as str]
            [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]]
            [jepsen.holdfast [client :as hc]
                             [db :as db]
                             [final :as final]
                             [nbd :as nbd]
                             [prefix :as prefix :refer [batch place slots]]
                             [session :as session]]))

(def block-bytes 4096)
(def snapshots-max "A set has 128 at most." 100)
(def snapshot-every-s 5)

(defn- volume-of [i] (nth db/volumes (first (place i))))
(defn- offset [writer slot] (* block-bytes (+ slot (* slots writer))))

;; Shared by all writers of a test:
;;   :grant       the last lease
;;   :generation  of the last connection
;;   :writers     {writer {:next number, :unsure? bool}}
;;   :snapshots   names of the existing ones
;;   :taken       number of requested ones

(defn- grant!
  "The lease to use; a new one if the present one is `dead`."
  [test shared dead]
  (locking shared
    (let [g (:grant @shared)]
      (if (and g (not= dead (:token g)))
        g
        (let [g (session/acquire! test "jepsen-order" "1m")]
          (swap! shared assoc :grant g)
          g)))))

(defn- conn!
  [test shared conns writer volume]
  (hc/conn! conns volume
            (fn []
              (let [open #(session/open! test % volume writer
                                         (:generation (swap! shared update
                                                             :generation inc)))
                    g    (grant! test shared nil)]
                (try (open g)
                     (catch clojure.lang.ExceptionInfo e
                       (if (hc/never-sent? e)
                         (open (grant! test shared (:token g)))
                         (throw e))))))))

(defn- write-batch!
  [conn writer numbers skip]
  (let [cookies (doall
                  (for [i numbers :when (not= i skip)]
                    (nbd/send! conn :write 0 (offset writer (second (place i)))
                               block-bytes (nbd/block writer i block-bytes))))
        lens    (zipmap cookies (repeat 0))]
    (doseq [c cookies] (nbd/receive! conn c lens))))

(defn- numbers-in
  "The numbers in a writer's slots, of bytes that begin with its first one."
  [^bytes data at writer]
  (mapv (fn [s]
          (let [from (+ at (* s block-bytes))]
            (nbd/unblock writer (java.util.Arrays/copyOfRange
                                  data (int from) (int (+ from block-bytes))))))
        (range slots)))

(defn- read-back!
  "[[number in each slot] of each volume]."
  [test shared conns writer]
  (mapv (fn [v]
          (numbers-in (nbd/read! (conn! test shared conns writer v)
                                 (offset writer 0) (* slots block-bytes))
                      0 writer))
        db/volumes))

(defn- read-snapshot!
  "[[[number in each slot] of each volume] of each writer]."
  [test process node snapshot]
  (let [writers (range (:concurrency test))
        by-volume
        (vec (for [v db/volumes]
               (let [conn (hc/connect-any! test process node
                                           (str (db/export v) "@" snapshot))]
                 (try
                   (let [data (nbd/read! conn 0 (offset (count writers) 0))]
                     (mapv #(numbers-in data (offset % 0) %) writers))
                   (finally (nbd/close! conn))))))]
    (mapv (fn [w] (mapv #(nth % w) by-volume)) writers)))

(defn- torn
  "The lie: its last volume is that of an older snapshot."
  [seen older]
  (mapv (fn [of-writer was] (conj (pop of-writer) (peek was))) seen older))

(defn- snapshot!
  "Takes one and reads it, and an older one once more: {:name, :readings {name seen}}."
  [test shared process node]
  (let [name'  (str "s" (:taken (swap! shared update :taken (fnil inc 0))))
        {:keys [exit err]} (db/cli test "snapshot" "create"
                                   (str db/set-name "@" name'))]
    (when-not (zero? exit)
      (nbd/fail! (if (#{3 4} exit) :refused :gone) (str/trim err)))
    (let [older    (:snapshots @shared)
          _        (swap! shared update :snapshots (fnil conj []) name')
          again    (when (seq older) (rand-nth older))
          ; A snapshot that cannot be read now exists all the same, and may be read later.
          reading  #(try {% (read-snapshot! test process node %)}
                         (catch clojure.lang.ExceptionInfo _))
          readings (into {} (map reading) (cond-> [name'] again (conj again)))]
      {:name     name'
       :readings (if (and (= "torn-snapshot" (:lie test)) (= 2 (count readings)))
                   (update readings name' torn (readings again))
                   readings)})))

(defn- writer-of [test op] (mod (:process op) (:concurrency test)))

(defrecord Client [shared conns node]
  client/Client
  (open! [this _ node] (assoc this :conns (atom {}), :node node))
  (setup! [_ _])
  (invoke! [_ test op]
    (let [writer (writer-of test op)
          state  #(get-in @shared [:writers writer] {:next 1, :unsure? true})
          set!'  #(swap! shared assoc-in [:writers writer] %)]
      (case (:f op)
        :write
        (let [{:keys [next unsure?]} (state)
              numbers (range next (+ next batch))
              op      (assoc op :writer writer, :value [next (dec (+ next batch))])]
          (if unsure?
            (do (Thread/sleep 50)
                (assoc op :type :fail, :error [:reads-back-first]))
            (try
              (let [conn (conn! test shared conns writer (volume-of next))]
                ; From here on the numbers are used up.
                (set!' {:next (+ next batch), :unsure? true})
                (write-batch! conn writer numbers
                              (when (and (= "lost-write" (:lie test))
                                         (zero? (rand-int 50)))
                                (+ next 5)))
                (set!' {:next (+ next batch), :unsure? false})
                (assoc op :type :ok))
              (catch clojure.lang.ExceptionInfo e
                (hc/close-all! conns)
                (assoc op :type (if (:unsure? (state)) :info :fail)
                       :error (hc/error e))))))

        :read-back
        (try
          ; All connections anew: the older ones' requests are done or dropped.
          (when (:unsure? (state)) (hc/close-all! conns))
          (let [seen (read-back! test shared conns writer)]
            (when (and (= "late-write" (:lie test)) (zero? (rand-int 10))
                       (< 200 (:next (state))))
              (write-batch! (conn! test shared conns writer (volume-of 1))
                            writer [1] nil))
            (set!' (assoc (state) :unsure? false))
            (assoc op :type :ok, :writer writer, :value seen))
          (catch clojure.lang.ExceptionInfo e
            (hc/close-all! conns)
            (assoc op :type :fail, :writer writer, :error (hc/error e))))

        :snapshot
        (if (<= snapshots-max (:taken @shared 0))
          (assoc op :type :fail, :error [:enough])
          (try
            (assoc op :type :ok, :value (snapshot! test shared (:process op) node))
            ; The snapshot may exist after any error, also after a refusal of a retry.
            (catch clojure.lang.ExceptionInfo e
              (assoc op :type :info, :error (hc/error e))))))))
  (teardown! [_ _])
  (close! [_ _] (hc/close-all! conns)))

(defn- with-invocation
  "A completion with :from, the index of its invocation."
  [history op]
  (assoc op :from (:index (h/invocation history op))))

(defn- snapshots
  "Of the snapshots taken and read: [{:name :from :by :seen}], the first reading of
  each, and the names of those with another reading that differed."
  [ops]
  (let [taken    (into {} (map (juxt (comp :name :value)
                                     #(select-keys % [:from :index]))) ops)
        readings (mapcat (comp :readings :value) ops)
        by-name  (reduce (fn [m [s seen]] (update m s (fnil conj []) seen))
                         {} readings)]
    {:there   (for [[s [seen & _]] by-name
                    :let [{:keys [from index]} (taken s)]
                    :when from]
                {:name s, :from from, :by index, :seen seen})
     :changed (sort (for [[s all] by-name :when (< 1 (count (set all)))] s))
     :again   (- (count readings) (count by-name))}))

(defn checker []
  (reify checker/Checker
    (check [_ _ history _]
      (let [ops     (->> (h/client-ops history)
                         (remove h/invoke?)
                         (mapv #(with-invocation history %)))
            writers (group-by :writer (filter :writer ops))
            judged  (update-vals writers prefix/judge)
            errors  (mapcat :errors (vals judged))
            fits    (mapcat :prefixes (vals judged))
            {:keys [there changed again]}
            (snapshots (filter #(and (= :snapshot (:f %)) (= :ok (:type %))) ops))
            there   (map #(update % :seen (partial mapv prefix/seen-map)) there)
            wrong   (for [[writer {:keys [batches]}] judged
                          error (prefix/judge-snapshots
                                  batches
                                  (map #(update % :seen nth writer) there))]
                      (assoc error :writer writer))
            between (prefix/judge-between (update-vals judged :batches) there)
            reads   (count (filter #(and (= :read-back (:f %)) (= :ok (:type %)))
                                   history))
            part    (fn [found? errors more]
                      (merge {:valid?      (cond (seq errors) false
                                                 found?       true
                                                 :else        :unknown)
                              :error-count (count errors)
                              :errors      (vec (take 5 errors))}
                             more))
            parts
            {:read-backs
             (part (pos? reads) errors
                   {:writers (count writers)
                    :count   reads
                    :unclear (count fits)
                    :unclear-in-part (count (filter (fn [[got of]] (< 0 got of)) fits))
                    :unclear-whole   (count (filter (fn [[got of]] (= got of)) fits))})
             :snapshots
             (part (seq there) (concat wrong (for [s changed] {:snapshot s, :error [:changed]}))
                   {:count (count there), :read-again again})
             :between-writers
             (part (seq there) between {})
             :final
             (final/judge history
                          (for [[writer ops] writers
                                :when (some #(and (= :write (:f %)) (h/ok? %)) ops)]
                            writer)
                          #(when (= :read-back (:f %)) (:writer %)))}]
        (assoc parts :valid? (checker/merge-valid (map :valid? (vals parts))))))))

(defn workload
  [opts]
  {:client          (->Client (atom {:generation 0, :writers {}}) nil nil)
   :checker         (checker)
   :generator       (gen/any (gen/mix (concat (repeat 6 (gen/repeat {:f :write}))
                                              [(gen/repeat {:f :read-back})]))
                             (gen/stagger snapshot-every-s
                                          (gen/repeat {:f :snapshot})))
   :final-generator (gen/clients
                      (final/patiently
                        (gen/each-thread (final/until-ok {:f :read-back}))))
   :progress        #{:write}
   :needs           {:write     (* 5 (:time-limit opts))
                     :read-back (:time-limit opts)
                    ; Each snapshot waits for a checkpoint, which an outage of the store holds up.
                    :snapshot  (quot (:time-limit opts) (* 6 snapshot-every-s))}})
