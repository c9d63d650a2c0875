(ns jepsen.holdfast.register
  "Register (R3, R5): places of a volume as linearizable registers, through whichever
  gateway serves.

  A key is a place of 512 bytes, 4 KiB or 128 KiB on one of the volumes; small ones
  are neighbours, so that extents are joined and cut. Each write fills its key with
  a value that is never repeated, so a torn write is seen. At the end every key is
  read once more, mostly from the store.

  A process keeps its connection until it breaks, with plain exports and without
  asking for the leader: a deposed gateway is used as long as it answers."
  (:require [clojure.tools.logging :refer [info]]
            [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]
                    [independent :as independent]]
            [jepsen.holdfast [checks :as checks]
                             [client :as hc]
                             [db :as db]
                             [final :as final]
                             [nbd :as nbd]
                             [porcupine :as porcupine]]
            [knossos.model :as model]))

(def ^:private mib (* 1024 1024))

(defn place
  "Where key k is: volume, offset and length."
  [k]
  (let [n      (count db/volumes)
        volume (nth db/volumes (mod k n))
        i      (quot k n)
        nth'   (quot i 3)]
    (into [volume]
          (case (int (mod i 3))
            0 [(* 512 nth') 512]
            1 [(+ (* 64 mib) (* 4096 nth')) 4096]
            2 [(+ (* 320 mib) (* 128 1024 nth')) (* 128 1024)]))))

(defrecord Client [conns node past]
  client/Client
  (open! [this _test node]
    (assoc this :conns (atom {}), :node node))

  (setup! [_ _])

  (invoke! [_ test op]
    (let [[k v]               (:value op)
          [volume offset len] (place k)
          lie?                (fn [what] (and (= what (:lie test))
                                              (zero? (rand-int 50))))
          done                (fn [v] (assoc op :type :ok
                                             :value (independent/tuple k v)))]
      (try
        (let [conn (hc/conn! conns volume
                             #(hc/connect-any! test (:process op) node
                                               (db/export volume)))
              op   (assoc op :gateway (:host conn))]
          (case (:f op)
            :read
            (let [found (nbd/unblock k (nbd/read! conn offset len))]
              (if (lie? "stale-read")
                (done (get-in (swap! past update k (fnil conj [0]) found) [k 0]))
                (done found)))

            :write
            (let [data (nbd/block k v len)]
              (cond (lie? "lost-write") nil
                    (lie? "early-ack")  (do (nbd/send! conn :write 0 offset len data)
                                            (hc/drop-conn! conns volume))
                    :else (nbd/write! conn offset data
                                      (if (even? v) nbd/fua 0)))
              (assoc op :type :ok))))
        (catch clojure.lang.ExceptionInfo e
          (hc/drop-conn! conns volume)
          (assoc op
                 :type  (if (or (= :read (:f op)) (hc/never-sent? e))
                          :fail :info)
                 :error (hc/error e))))))

  (teardown! [_ _])

  (close! [_ _] (hc/close-all! conns))

  client/Reusable
  ; A process that crashed gets a new client, with new connections.
  (reusable? [_ _] false))

(defn- key-of [op] (first (:value op)))

(defn final-checker
  "Was every place with an acknowledged write read in the end? An order of the
  operations is found all the more easily the fewer reads there are."
  []
  (reify checker/Checker
    (check [_ _ history _]
      (let [acked (into #{} (comp (filter #(and (= :write (:f %)) (h/ok? %)))
                                  (map key-of))
                        (h/client-ops history))]
        (final/judge history acked #(when (= :read (:f %)) (key-of %)))))))

(defn checker
  "Knossos, and Porcupine if there is one: both must agree."
  [opts]
  (checker/compose
    (cond-> {:final   (final-checker)
             :knossos (checks/slim
                        (independent/checker
                          (checker/linearizable {:model     (model/register 0)
                                                 :algorithm :linear})))}
      (:porcupine opts)
      (assoc :porcupine (porcupine/checker {:model "register"})))))

(defn workload
  [opts]
  (let [threads (:threads-per-key opts)
        used    (atom -1)]
    {:client          (->Client nil nil (atom {}))
     :checker         (checker opts)
     :generator
     (independent/concurrent-generator
       threads
       (map (fn [k] (swap! used max k) k) (range))
       (fn [_k]
         (->> (gen/mix [(gen/repeat {:f :read})
                        (map (fn [v] {:f :write, :value v}) (rest (range)))])
              (gen/limit (:ops-per-key opts)))))
     :final-generator
     (delay
       (final/by-each-its-own
         (:concurrency opts)
         (map (fn [k] {:f :read, :value (independent/tuple k nil)})
              (range (inc @used)))))
     :progress        #{:write}
     :needs           {:read  (* 5 (:time-limit opts))
                       :write (* 5 (:time-limit opts))}}))
