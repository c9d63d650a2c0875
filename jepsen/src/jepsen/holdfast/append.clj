(ns jepsen.holdfast.append
  "Append (R1, R2, R3, R5 for a database's users): transactions on a PostgreSQL that
  is on a set and moves between hosts, through the one address of its proxy.

  A transaction reads lists and appends to them, at SERIALIZABLE. From the reads
  Elle infers possible orders of transactions and looks for cycles, real time
  included. Some clients write a ledger instead: each commit adds its own number,
  and in the end every acknowledged one must be there.

  Unknown outcomes (R12): a transaction whose COMMIT was sent and not answered is
  unknown, unless PostgreSQL answers that it rolled it back in favour of another.
  Without a COMMIT nothing is ever committed."
  (:require [clojure.set :as set]
            [clojure.string :as str]
            [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]
                    [util :as util]]
            [jepsen.holdfast.final :as final]
            [jepsen.tests.cycle.append :as append])
  (:import (java.sql Connection DriverManager PreparedStatement ResultSet
                     SQLException Statement)))

(def tables
  "Lists lie in several tables, so that a transaction touches several files."
  ["jepsen_lists_0" "jepsen_lists_1" "jepsen_lists_2"])
(def ledger "jepsen_ledger")

(def ledger-clients "How many of the clients write the ledger." 2)

(defn- table [k] (nth tables (mod k (count tables))))

(defn- url
  "pgjdbc counts in whole seconds."
  [test client]
  (let [answer (if (even? client) (:op-timeout test) (:impatient test))]
    (str "jdbc:postgresql://" (:postgres test) "/postgres?user=postgres"
         "&sslmode=disable&gssEncMode=disable&connectTimeout=3&loginTimeout=5"
         "&socketTimeout=" (long (Math/ceil answer)))))

(defn- run! [^Connection conn ^String sql]
  (with-open [^Statement s (.createStatement conn)]
    (.execute s sql)))

(defn- one
  "The first column of the only row, nil if there is none."
  [^Connection conn ^String sql]
  (with-open [^Statement s (.createStatement conn)
              ^ResultSet r (.executeQuery s sql)]
    (when (.next r) (.getString r 1))))

(defn- connect!
  "A session in which every transaction is serializable and durable. A session with a
  weaker setting is refused, since it tests nothing."
  ^Connection [test client]
  (let [conn (DriverManager/getConnection (url test client))]
    (try
      (doto conn
        (.setAutoCommit true)
        (run! "set default_transaction_isolation = serializable")
        ; A scan of a whole table would make every transaction conflict with each.
        (run! "set enable_seqscan = off")
        (.setAutoCommit false)
        (.setTransactionIsolation Connection/TRANSACTION_SERIALIZABLE))
      (doseq [[setting wanted] {"transaction_isolation" "serializable"
                                "synchronous_commit"    "on"
                                "fsync"                 "on"
                                "full_page_writes"      "on"}
              :let [found (one conn (str "show " setting))]]
        (when-not (= wanted found)
          (throw (ex-info (str setting ": found " found ", expected " wanted)
                          {:setting setting}))))
      (.rollback conn)
      conn
      (catch Throwable t
        (.close conn)
        (throw t)))))

(defn- read-list [^Connection conn k]
  (with-open [^PreparedStatement s
              (.prepareStatement
                conn (str "select elements from " (table k) " where key = ?"))]
    (.setInt s 1 k)
    (with-open [^ResultSet r (.executeQuery s)]
      (when (.next r)
        (mapv parse-long (str/split (.getString r 1) #" "))))))

(defn- append! [^Connection conn k v]
  (let [t (table k)]
    (with-open [^PreparedStatement s
                (.prepareStatement
                  conn (str "insert into " t " (key, elements) values (?, ?) "
                            "on conflict (key) do update set elements = "
                            t ".elements || ' ' || excluded.elements"))]
      (.setInt s 1 k)
      (.setString s 2 (str v))
      (.executeUpdate s))))

(defn- enter! [^Connection conn n]
  (with-open [^PreparedStatement s
              (.prepareStatement conn (str "insert into " ledger " values (?)"))]
    (.setLong s 1 n)
    (.executeUpdate s)))

(defn- read-ledger [^Connection conn]
  (with-open [^Statement s (.createStatement conn)
              ^ResultSet r (.executeQuery s (str "select n from " ledger))]
    (loop [found (transient [])]
      (if (.next r)
        (recur (conj! found (.getLong r 1)))
        (persistent! found)))))

(defn- make-tables! [test]
  (with-open [conn (connect! test 0)]
    (doseq [t tables]
      (run! conn (str "drop table if exists " t))
      (run! conn (str "create table " t
                      " (key int primary key, elements text not null)")))
    (run! conn (str "drop table if exists " ledger))
    ; No unique key: a number that is there twice shall be seen, not refused.
    (run! conn (str "create table " ledger " (n bigint not null)"))
    (.commit conn)))

(defn- work!
  "What a transaction does, up to its COMMIT. Gives the completed value."
  [conn {:keys [f value]}]
  (case f
    ; A :look is a transaction of the final reads, which does not count as progress.
    (:txn :look)
    (mapv (fn [[f k v]]
            (case f
              :r      [:r k (read-list conn k)]
              :append (do (append! conn k v) [:append k v])))
          value)
    :add  (do (enter! conn value) value)
    :read (read-ledger conn)))

(defn- error [^Throwable e]
  (if (instance? SQLException e)
    [(.getSQLState ^SQLException e) (.getMessage e)]
    [(.getSimpleName (class e)) (.getMessage e)]))

(defn- rolled-back?
  "PostgreSQL rolled the transaction back: serialization failure or deadlock. Any
  other error on a COMMIT may come after the commit."
  [e]
  (and (instance? SQLException e)
       (contains? #{"40001" "40P01"} (.getSQLState ^SQLException e))))

(defn- writes? [{:keys [f value]}]
  (case f
    :txn  (boolean (some #(= :append (first %)) value))
    :add  true
    :read false))

(defn- lie!
  "A lying client's answer; nil if it is honest this time. `before` has the reads of
  earlier transactions."
  [test op value before]
  (let [now? (fn [lie one-in] (and (= lie (:lie test))
                                   (zero? (rand-int one-in))))]
    (cond
      ; Reports success and rolls back.
      (and (= :txn (:f op)) (writes? op) (now? "lost-write" 50)) [:rollback value]
      (and (= :add (:f op)) (now? "lost-commit" 50))             [:rollback value]
      ; Answers with the list as this client first saw it.
      (and (= :txn (:f op)) (not (writes? op)) (now? "stale-read" 5))
      [:commit (mapv (fn [[f k v]] [f k (get before k v)]) value)])))

(defn- open-session!
  "Without a server, waits a moment before the next try."
  [test op conn]
  (try
    (reset! conn (connect! test (:process op)))
    (catch Exception e
      (Thread/sleep 100)
      (throw e))))

(defrecord Client [conn before touched made]
  client/Client
  (open! [this _ _]
    (assoc this :conn (atom nil), :before (atom {})))

  (setup! [_ test]
    (locking made
      (when-not @made
        (util/await-fn #(make-tables! test)
                       {:retry-interval 500, :log-interval 10000, :timeout 60000
                        :log-message "Waiting for PostgreSQL"})
        (reset! made true))))

  (invoke! [_ test op]
    (let [sent? (volatile! false)]
      (try
        (let [^Connection c (or @conn (open-session! test op conn))]
          (when (= :txn (:f op))
            (swap! touched into (map second) (:value op)))
          (let [value      (work! c op)
                [how said] (or (lie! test op value @before) [:commit value])]
            (when (= :txn (:f op))
              (swap! before #(merge (into {} (for [[f k v] value :when (= :r f)]
                                               [k v])) %)))
            (if (= :rollback how)
              (.rollback c)
              (do (vreset! sent? true)
                  (.commit c)))
            (assoc op :type :ok, :value said)))
        (catch Exception e
          (let [definite? (or (not @sent?) (rolled-back? e))]
            ; A session whose transaction was rolled back goes on; any other is closed.
            (when-not (and (rolled-back? e)
                           (util/meh (.rollback ^Connection @conn) true))
              (when-let [c @conn] (util/meh (.close ^Connection c)))
              (reset! conn nil))
            (assoc op
                   :type  (if definite? :fail :info)
                   :error (error e)))))))

  (teardown! [_ _])
  (close! [_ _]
    (when-let [c (and conn @conn)]
      (util/meh (.close ^Connection c)))))

(defn- only
  "A checker that sees operations of `fs` alone."
  [fs c]
  (reify checker/Checker
    (check [_ test history opts]
      (checker/check c test (h/filter (comp fs :f) history) opts))))

(defn ledger-checker
  "Every acknowledged number is there once, and no number that was never written."
  []
  (reify checker/Checker
    (check [_ _ history _]
      (let [adds  (h/filter (h/has-f? :add) history)
            ns    (fn [type'] (into #{} (comp (filter #(= type' (:type %)))
                                              (map :value)) adds))
            acked (ns :ok)
            found (->> history (filter #(and (= :read (:f %)) (= :ok (:type %))))
                       last :value)
            unread (when (nil? found)
                     (final/judge history (when (seq acked) [:ledger])
                                  #(when (= :read (:f %)) :ledger)))
            there (set found)
            twice (into (sorted-set)
                        (keep (fn [[n c]] (when (< 1 c) n))) (frequencies found))
            lost  (set/difference acked there)
            ; A number whose add failed for sure is as wrong as one that was never written.
            ghost (set/difference there acked (ns :info))
            show  util/integer-interval-set-str]
        (if unread
          {:valid?       (if (empty? acked) :unknown (:valid? unread))
           :acknowledged (count acked)
           :final        unread}
          {:valid?            (and (empty? lost) (empty? ghost) (empty? twice))
           :acknowledged      (count acked)
           :lost              (show lost)
           :lost-count        (count lost)
           :not-committed-yet-there (show ghost)
           :twice             (show twice)
           :unknown           (count (ns :info))
           :unknown-yet-there (count (set/intersection there (ns :info)))})))))

(defn workload
  [opts]
  (let [touched (atom (sorted-set))]
    {:client    (->Client nil nil touched (atom false))
     :checker   (checker/compose
                  {:elle   (only #{:txn :look}
                                 (append/checker
                                   {:consistency-models [:strict-serializable]}))
                   :ledger (ledger-checker)})
     :generator (gen/reserve
                  ledger-clients (map (fn [n] {:f :add, :value n}) (range))
                  (append/gen {:key-count 10, :min-txn-length 1, :max-txn-length 4
                               :max-writes-per-key 32}))
     ; The ledger, and every list once more: the loss of an append that no transaction
     ; has read since would be missed.
     :final-generator
     (gen/clients
       (gen/on-threads
         #{0}
         (delay
           ; The lists get no patience of their own: where the ledger cannot be read, they cannot either.
           (cons (final/patiently (final/until-ok {:f :read}))
                 (for [ks (partition-all 8 @touched)]
                   (final/until-ok 5 {:f :look, :value (mapv (fn [k] [:r k nil]) ks)}))))))
     :progress  #{:txn :add}
     :needs     {:txn  (* 10 (:time-limit opts))
                 :add  (* 2 (:time-limit opts))
                 :look 1
                 :read 1}}))
