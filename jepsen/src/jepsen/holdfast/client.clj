(ns jepsen.holdfast.client
  "Shared by the workloads' clients: finding the serving gateway, keeping a
  connection until it breaks, and turning results into :ok, :fail, :info.

  A request that was sent and not answered with success may have been carried out,
  whatever the server answered: an error can hide an earlier try of the same write
  under another epoch. So a write is :fail only if no request was sent. A read has
  no effect and is always :fail."
  (:require [clojure.tools.logging :refer [debug info]]
            [jepsen.holdfast [db :as db]
                             [nbd :as nbd]]))

(def handshake-ms 1500)

(defn timeout-ms
  "Every other client waits long for an answer, so that late ones are seen; the
  others give up soon and ask elsewhere, so that others' writes come between."
  [test client]
  (long (* 1000 (if (even? client) (:op-timeout test) (:impatient test)))))

(defn connect-node!
  "Opens an export at this node's gateway for the client of this number, or
  throws."
  [test client node export]
  (nbd/connect! {:host         (db/address test node)
                 :port         db/nbd-port
                 :export       export
                 :handshake-ms handshake-ms
                 :timeout-ms   (timeout-ms test client)}))

(defn connect-any!
  "Asks one gateway after another, `first-node` first, until one opens the
  export or `patience-ms` are over."
  ([test client first-node export]
   (connect-any! test client first-node export (:patience-ms test)))
  ([test client first-node export patience-ms]
   (let [nodes    (cons first-node (remove #{first-node} (:nodes test)))
         deadline (+ (System/nanoTime) (* 1000000 patience-ms))]
     (loop [candidates (cycle nodes), tried 0, last-error nil]
       (when (and (pos? tried) (zero? (mod tried (count nodes))))
         (Thread/sleep 100))
       (if (and (pos? tried) (< deadline (System/nanoTime)))
         (throw last-error)
         (let [res (try (connect-node! test client (first candidates) export)
                        (catch clojure.lang.ExceptionInfo e e))]
           (if (instance? Throwable res)
             (recur (rest candidates) (inc tried) res)
             res)))))))

(defn conn!
  "The connection under `k` in the atom `conns`, opened by `open!` if there is
  none."
  [conns k open!]
  (or (get @conns k)
      (let [conn (open!)]
        (swap! conns assoc k conn)
        conn)))

(defn drop-conn! [conns k]
  (nbd/close! (get @conns k))
  (swap! conns dissoc k))

(defn close-all! [conns]
  (run! nbd/close! (vals @conns))
  (reset! conns {}))

(defn error
  "For :error of a completion."
  [^Throwable e]
  (let [{:keys [kind errno]} (ex-data e)]
    [(or kind :exception) (or errno (.getMessage e))]))

(defn never-sent? [e]
  (contains? #{:unreachable :refused} (:kind (ex-data e))))
