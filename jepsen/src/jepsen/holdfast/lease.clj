(ns jepsen.holdfast.lease
  "Lease (R2, R6): owners take the set from one another by force and go on writing
  to one block, each through the sessions it once had.

  Checked: epochs grow; no write that was begun after a newer grant had returned
  succeeds; nothing of an older epoch is seen after something of a newer one; and,
  with Porcupine, the whole is linearizable where a grant of an epoch makes
  every other epoch's writes ineffective."
  (:require [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]]
            [jepsen.holdfast [client :as hc]
                             [db :as db]
                             [final :as final]
                             [nbd :as nbd]
                             [porcupine :as porcupine]
                             [session :as session]]))

(def volume (first db/volumes))
(def len 4096)

;; Shared: {:generation n, :owners {owner {:token :epoch :node :conn}}, :newest owner}
;; A session outlives the Jepsen process that took it, on purpose.

(defn- owner-of [test op] (mod (:process op) (:concurrency test)))

(defn- forget-conn! [shared owner]
  (nbd/close! (get-in @shared [:owners owner :conn]))
  (swap! shared update-in [:owners owner] dissoc :conn))

(defn- conn!
  [test shared owner]
  (or (get-in @shared [:owners owner :conn])
      (let [session (get-in @shared [:owners owner])
            conn    (session/open! test session volume (mod owner 64)
                                   (:generation (swap! shared update
                                                       :generation inc)))]
        (swap! shared assoc-in [:owners owner :conn] conn)
        conn)))

(defn- write! [conn v] (nbd/write! conn 0 (nbd/block 0 v len)))

(defrecord Client [shared]
  client/Client
  (open! [this _ _] this)
  (setup! [_ _])
  (invoke! [_ test op]
    (let [owner (owner-of test op)
          mine  (get-in @shared [:owners owner])]
      (if (= :grant (:f op))
        (try
          (let [s (session/acquire! test (str "host-" owner) "20s")]
            (forget-conn! shared owner)
            (swap! shared (fn [m] (-> m (assoc-in [:owners owner] s)
                                      (assoc :newest owner))))
            (assoc op :type :ok
                   :value (if (and (= "old-grant" (:lie test)) (:epoch mine)
                                   (zero? (rand-int 5)))
                            (:epoch mine)
                            (:epoch s))))
          (catch clojure.lang.ExceptionInfo e
            (assoc op :type (if (hc/never-sent? e) :fail :info)
                   :error (hc/error e))))
        (let [op (assoc op :epoch (:epoch mine))]
          (if-not (:token mine)
            (assoc op :type :fail, :error [:never-an-owner])
            (try
              (let [conn (conn! test shared owner)]
                (case (:f op)
                  :write (do (write! conn (:value op))
                             (assoc op :type :ok))
                  :read  (assoc op :type :ok
                                :value (nbd/unblock 0 (nbd/read! conn 0 len)))))
              (catch clojure.lang.ExceptionInfo e
                ; After an error answer the connection goes on: more requests
                ; of a lost epoch.
                (when-not (= :errno (:kind (ex-data e)))
                  (forget-conn! shared owner))
                (let [newest (:newest @shared)]
                  (if (and (= "old-epoch" (:lie test)) (= :write (:f op))
                           (not= owner newest) (zero? (rand-int 5))
                           (try (write! (conn! test shared newest) (:value op))
                                (catch clojure.lang.ExceptionInfo _ nil)))
                    (assoc op :type :ok)
                    (assoc op :error (hc/error e)
                           :type (if (or (= :read (:f op)) (hc/never-sent? e))
                                   :fail :info)))))))))))
  (teardown! [_ _])
  (close! [_ _])
  client/Reusable
  (reusable? [_ _] true))

(defn late-writes
  "Successful writes begun after a newer grant had returned."
  [history]
  (loop [ops history, granted 0, begun {}, late []]
    (if-let [op (first ops)]
      (case [(:f op) (:type op)]
        [:grant :ok]     (recur (rest ops) (max granted (:value op)) begun late)
        [:write :invoke] (recur (rest ops) granted
                                (assoc begun (:process op) granted) late)
        [:write :ok]     (recur (rest ops) granted begun
                                (cond-> late
                                  (< (:epoch op) (begun (:process op)))
                                  (conj {:op    (select-keys op [:index :value :epoch])
                                         :newer (begun (:process op))})))
        (recur (rest ops) granted begun late))
      late)))

(defn grants-backwards
  "Grants that were asked for after one had returned whose epoch is not smaller."
  [history]
  (loop [ops history, granted 0, begun {}, bad []]
    (if-let [op (first ops)]
      (case [(:f op) (:type op)]
        [:grant :invoke] (recur (rest ops) granted
                                (assoc begun (:process op) granted) bad)
        [:grant :ok]     (recur (rest ops) (max granted (:value op)) begun
                                (cond-> bad
                                  (<= (:value op) (begun (:process op)))
                                  (conj (select-keys op [:index :value]))))
        (recur (rest ops) granted begun bad))
      bad)))

(defn seen-backwards
  "Reads of a value from an older epoch than one seen or acknowledged before they
  began, or of a value that was never written."
  [history]
  (let [epoch-of (into {0 0} (for [op history
                                   :when (and (= :write (:f op)) (:epoch op))]
                               [(:value op) (:epoch op)]))]
    (loop [ops history, seen 0, begun {}, bad []]
      (if-let [op (first ops)]
        (case [(:f op) (:type op)]
          [:read :invoke] (recur (rest ops) seen (assoc begun (:process op) seen) bad)
          [:write :ok]    (recur (rest ops) (max seen (:epoch op)) begun bad)
          [:read :ok]     (let [e (epoch-of (:value op) -1)]
                            (recur (rest ops) (max seen e) begun
                                   (cond-> bad
                                     (< e (begun (:process op)))
                                     (conj {:op    (select-keys op [:index :value])
                                            :epoch e
                                            :newer (begun (:process op))}))))
          (recur (rest ops) seen begun bad))
        bad))))

(defn epochs-checker []
  (reify checker/Checker
    (check [_ _ history _]
      (let [ops    (vec (h/client-ops history))
            late   (late-writes ops)
            grants (grants-backwards ops)
            seen   (seen-backwards ops)]
        {:valid?            (every? empty? [late grants seen])
         :grants            (count (filter #(= [:grant :ok] [(:f %) (:type %)]) ops))
         :refused-of-losers (count (filter #(and (= :write (:f %))
                                                 (= :errno (first (:error %))))
                                           ops))
         :late-writes       (take 5 late)
         :grants-backwards  (take 5 grants)
         :seen-backwards    (take 5 seen)}))))

(defn final-checker
  "Could the last owner read the final content?"
  []
  (reify checker/Checker
    (check [_ _ history _]
      (let [acked? (some #(and (= :write (:f %)) (h/ok? %)) (h/client-ops history))]
        (final/judge history (when acked? [:block]) #(when (= :read (:f %)) :block))))))

(defn- fields
  "For Porcupine. A grant of unknown outcome has no known epoch; leaving it out
  forbids nothing less, since no client can write under it."
  [f v completion]
  (case f
    :grant (when v {:epoch v, :value 0})
    :write (when-let [e (:epoch completion)] {:epoch e, :value v})
    {:value v}))

(defn workload
  [opts]
  (let [values (atom 0)
        write  (fn [_ _] {:f :write, :value (swap! values inc)})]
    {:client    (->Client (atom {:generation 0, :owners {}}))
     :checker   (checker/compose
                  (cond-> {:epochs (epochs-checker)
                           :final  (final-checker)}
                    (:porcupine opts)
                    (assoc :porcupine
                           (porcupine/checker {:model "fenced", :more fields}))))
     :generator (gen/mix (concat [(gen/repeat {:f :grant})]
                                 (repeat 30 write)
                                 (repeat 15 (gen/repeat {:f :read}))))
     :final-generator
     ; One client takes the lease and reads; then all read, the former owners too.
     (gen/phases (final/by-one {:f :grant})
                 (final/by-one {:f :read})
                 (gen/clients (gen/each-thread (gen/limit 2 (gen/repeat {:f :read})))))
     :progress  #{:write}
     :needs     {:grant (quot (:time-limit opts) 2)
                 :write (:time-limit opts)
                 :read  (quot (:time-limit opts) 2)}}))
