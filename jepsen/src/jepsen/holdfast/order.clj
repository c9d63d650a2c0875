(ns jepsen.holdfast.order
  "Order (R4): after a crash or a failover, what is there is a prefix of what was
  written, over all volumes of the set.

  Each writer numbers its blocks 1, 2, 3 ... and writes them in batches, sixteen in
  flight on one connection, each batch to the next volume and only once the one
  before was answered. A gateway begins the requests of a connection in the
  order of the wire, so the numbers are the order that R4 speaks of, though answers
  come in any order. After anything unclear, a writer opens its connections
  anew (which fences the old ones), reads all its blocks back and says what it
  saw; it goes on with numbers that were never used.

  The checker: what was seen is exactly what the numbers up to some m leave behind,
  m not below the last answered one. Numbers above m never come back (R6).

  Writers share a lease with a token. Who finds it dead takes it anew, by force."
  (:require [clojure.tools.logging :refer [info]]
            [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]]
            [jepsen.holdfast [client :as hc]
                             [db :as db]
                             [nbd :as nbd]
                             [session :as session]]))

(def batch 16)
(def slots "Blocks of a writer on each volume." 64)
(def block-bytes 4096)

(defn place
  "[volume slot] of number i. Slots are taken round, over many batches."
  [i]
  (let [b (quot (dec i) batch)
        v (mod b (count db/volumes))]
    [(nth db/volumes v)
     (mod (+ (* batch (quot b (count db/volumes))) (mod (dec i) batch)) slots)]))

(defn- offset [writer slot] (* block-bytes (+ slot (* slots writer))))

(defn contents
  "{[volume slot] number} after these numbers, in this order."
  [numbers]
  (reduce (fn [m i] (assoc m (place i) i)) {} numbers))

;; Shared by all writers of a test:
;;   :grant       the last lease
;;   :generation  of the last connection
;;   :writers     {writer {:next number, :unsure? bool}}

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

(defn- read-back!
  "{volume [number in each slot]}."
  [test shared conns writer]
  (into {}
        (for [v db/volumes]
          (let [data (nbd/read! (conn! test shared conns writer v)
                                (offset writer 0) (* slots block-bytes))]
            [v (mapv (fn [s]
                       (nbd/unblock writer
                                    (java.util.Arrays/copyOfRange
                                      ^bytes data (int (* s block-bytes))
                                      (int (* (inc s) block-bytes)))))
                     (range slots))]))))

(defn- writer-of [test op] (mod (:process op) (:concurrency test)))

(defrecord Client [shared conns]
  client/Client
  (open! [this _ _] (assoc this :conns (atom {})))
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
              (let [conn (conn! test shared conns writer (first (place next)))]
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
              (write-batch! (conn! test shared conns writer (first (place 1)))
                            writer [1] nil))
            (set!' (assoc (state) :unsure? false))
            (assoc op :type :ok, :writer writer, :value seen))
          (catch clojure.lang.ExceptionInfo e
            (hc/close-all! conns)
            (assoc op :type :fail, :writer writer, :error (hc/error e)))))))
  (teardown! [_ _])
  (close! [_ _] (hc/close-all! conns)))

(defn- seen-map [seen]
  (into {} (for [[v numbers] seen
                 [slot i] (map-indexed vector numbers)
                 :when (not= 0 i)]
             [[v slot] i])))

(defn judge
  "One writer's completions in order. {:errors [...], :prefixes [...]}: what was
  wrong, and of each unclear batch how much was there."
  [ops]
  (loop [ops ops, certain {}, tentative [], errors [], prefixes []]
    (if-let [op (first ops)]
      (case [(:f op) (:type op)]
        [:write :ok]
        (let [[a b] (:value op)]
          (recur (rest ops) (merge certain (contents (range a (inc b)))) []
                 errors prefixes))

        [:write :info]
        (let [[a b] (:value op)]
          (recur (rest ops) certain (range a (inc b)) errors prefixes))

        [:read-back :ok]
        (let [seen (seen-map (:value op))
              fits (->> (range (inc (count tentative)))
                        (filter #(= seen (merge certain
                                                (contents (take % tentative)))))
                        first)]
          (if fits
            (recur (rest ops)
                   (merge certain (contents (take fits tentative))) [] errors
                   (cond-> prefixes
                     (seq tentative) (conj [fits (count tentative)])))
            (recur (rest ops) seen []
                   (conj errors
                         {:index     (:index op)
                          :writer    (:writer op)
                          :tentative [(first tentative) (last tentative)]
                          ; Against all acknowledged and none, or all, of the rest.
                          :missing   (into (sorted-map)
                                           (remove (fn [[at i]]
                                                     (<= i (get seen at 0))))
                                           certain)
                          :unexpected (into (sorted-map)
                                            (remove (fn [[at i]]
                                                      (or (= i (get certain at))
                                                          (some #{i} tentative))))
                                            seen)
                          :seen-of-tentative (filterv (set (vals seen)) tentative)})
                   prefixes)))

        (recur (rest ops) certain tentative errors prefixes))
      {:errors errors, :prefixes prefixes})))

(defn checker []
  (reify checker/Checker
    (check [_ _ history _]
      (let [writers (->> (h/client-ops history)
                         (remove h/invoke?)
                         (filter :writer)
                         (group-by :writer))
            judged  (map judge (vals writers))
            errors  (mapcat :errors judged)
            fits    (mapcat :prefixes judged)
            reads   (count (filter #(and (= :read-back (:f %)) (= :ok (:type %)))
                                   history))]
        {:valid?     (if (zero? reads) :unknown (empty? errors))
         :writers    (count writers)
         :read-backs reads
         :unclear    (count fits)
         :unclear-in-part (count (filter (fn [[got of]] (< 0 got of)) fits))
         :unclear-whole   (count (filter (fn [[got of]] (= got of)) fits))
         :error-count (count errors)
         :errors     (vec (take 5 errors))}))))

(defn workload
  [opts]
  {:client          (->Client (atom {:generation 0, :writers {}}) nil)
   :checker         (checker)
   :generator       (gen/mix (concat (repeat 6 (gen/repeat {:f :write}))
                                     [(gen/repeat {:f :read-back})]))
   :final-generator (gen/clients
                      (gen/each-thread
                        (gen/until-ok (gen/limit 20 (gen/repeat {:f :read-back})))))
   :progress        #{:write}
   :needs           {:write     (* 5 (:time-limit opts))
                     :read-back (:time-limit opts)}})
