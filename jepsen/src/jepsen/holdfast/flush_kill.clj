(ns jepsen.holdfast.flush-kill
  "Flush-kill (R1): flushed writes are there, whatever was killed.

  Each operation writes eight blocks of its own, several in flight, and then sends
  FLUSH; every fourth uses FUA instead. No block is ever written again. At the end
  everything is read: an acknowledged batch that is not complete was lost."
  (:require [clojure.set :as set]
            [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]
                    [util :as util]]
            [jepsen.holdfast [client :as hc]
                             [db :as db]
                             [final :as final]
                             [nbd :as nbd]]))

(def block-bytes 4096)
(def batch 8)
(def read-bytes (* 1024 1024))

(defn- volume [n] (nth db/volumes (mod n (count db/volumes))))

(defn- offset
  "Of block j of batch n."
  [n j]
  (* block-bytes (+ j (* batch (quot n (count db/volumes))))))

(defn- send-batch! [conn n skip]
  (let [flags (if (zero? (mod n 4)) nbd/fua 0)]
    (doall
      (for [j (range batch) :when (not= j skip)]
        (nbd/send! conn :write flags (offset n j) block-bytes
                   (nbd/block n (inc j) block-bytes))))))

(defn- write-batch! [conn n skip]
  (let [cookies (send-batch! conn n skip)
        lens    (zipmap cookies (repeat 0))]
    (doseq [c cookies] (nbd/receive! conn c lens))
    (when-not (zero? (mod n 4)) (nbd/flush! conn))))

(defn- found-in
  "{batch number of blocks there} of `data`, which begins at byte `at` of volume
  v (an index); blocks that hold something else are counted under :wrong."
  [v at ^bytes data]
  (let [blocks (quot (alength data) block-bytes)]
    (loop [b 0, found {}]
      (if (= b blocks)
        found
        (let [i     (+ b (quot at block-bytes))
              n     (+ v (* (count db/volumes) (quot i batch)))
              j     (mod i batch)
              bytes (java.util.Arrays/copyOfRange data (int (* b block-bytes))
                                                  (int (* (inc b) block-bytes)))
              value (nbd/unblock n bytes)]
          (recur (inc b)
                 (cond (zero? value)      found
                       (= value (inc j))  (update found n (fnil inc 0))
                       :else              (update found :wrong (fnil inc 0)))))))))

(defn- read-all!
  [test conns node upto]
  (reduce (partial merge-with +)
          {}
          (for [[v name'] (map-indexed vector db/volumes)
                :let [end  (+ (offset upto 0) (* batch block-bytes))]
                at (range 0 end read-bytes)]
            (let [conn (hc/conn! conns name'
                                 #(hc/connect-any! test 0 node
                                                   (db/export name')))]
              (found-in v at (nbd/read! conn at read-bytes))))))

(defrecord Client [conns node last-batch]
  client/Client
  (open! [this _ node] (assoc this :conns (atom {}), :node node))
  (setup! [_ _])
  (invoke! [_ test op]
    (try
      (case (:f op)
        :add
        (let [n    (:value op)
              conn (hc/conn! conns (volume n)
                             #(hc/connect-any! test (:process op) node
                                               (db/export (volume n))))
              lie? (fn [what one-in] (and (= what (:lie test))
                                          (zero? (rand-int one-in))))]
          (swap! last-batch max n)
          (if (lie? "early-ack" 5)
            (do (send-batch! conn n nil)
                (hc/drop-conn! conns (volume n)))
            (write-batch! conn n (when (lie? "lost-write" 100) 3)))
          (assoc op :type :ok))

        :read
        (let [found (read-all! test conns node @last-batch)]
          (assoc op :type :ok
                 :value {:whole (into (sorted-set)
                                      (keep (fn [[n c]] (when (= batch c) n))
                                            (dissoc found :wrong)))
                         :part  (into (sorted-set)
                                      (keep (fn [[n c]] (when (< c batch) n))
                                            (dissoc found :wrong)))
                         :wrong (:wrong found 0)})))
      (catch clojure.lang.ExceptionInfo e
        (hc/close-all! conns)
        (assoc op
               :type  (if (or (= :read (:f op)) (hc/never-sent? e)) :fail :info)
               :error (hc/error e)))))
  (teardown! [_ _])
  (close! [_ _] (hc/close-all! conns)))

(defn checker []
  (reify checker/Checker
    (check [_ _ history _]
      (let [adds  (h/filter (h/has-f? :add) history)
            ns    (fn [type'] (into #{} (comp (filter #(= type' (:type %)))
                                              (map :value)) adds))
            acked (ns :ok)
            tried (ns :invoke)
            final (->> history (filter #(and (= :read (:f %)) (= :ok (:type %))))
                       last :value)
            ; Without a final read: why there is none.
            unread (when-not final
                     (final/judge history (when (seq acked) [:all])
                                  #(when (= :read (:f %)) :all)))
            {:keys [whole part wrong]} final
            lost  (set/difference acked whole)
            ghost (set/difference (set/union whole part) tried)
            show  util/integer-interval-set-str]
        (if unread
          ; Without any acknowledged batch nothing can be missing: that is no pass.
          {:valid?       (if (empty? acked) :unknown (:valid? unread))
           :acknowledged (count acked)
           :final        unread}
          {:valid?       (and (empty? lost) (empty? ghost) (zero? wrong))
           :acknowledged (count acked)
           :lost         (show lost)
           :lost-count   (count lost)
           :never-asked  (show ghost)
           :wrong-blocks wrong
           :unknown-yet-there (count (set/intersection whole (ns :info)))})))))

(defn workload
  [opts]
  {:client          (->Client nil nil (atom 0))
   :checker         (checker)
   :generator       (map (fn [n] {:f :add, :value n}) (range))
   :final-generator (final/by-one {:f :read})
   :progress        #{:add}
   :needs           {:add  (* 5 (:time-limit opts))
                     :read 1}})
