(ns jepsen.holdfast.disks
  "Disks that lose unsynced data in a power cut: each node's data is on one that
  `holdfast-scenarios jepsen --disk` mounts, the same as in `cargo xtask power`.

      DIR/NODE/disk/data    instead of DIR/NODE/data

  A cut switches the disk off and then ends the gateway: unsynced writes are kept,
  lost or torn, in any order, as the seed draws."
  (:require [clojure.java.io :as io]
            [clojure.java.shell :refer [sh]]
            [jepsen [control :as c]
                    [db :as jdb]]
            [jepsen.holdfast [logs :as logs]])
  (:import (java.util Random)
           (java.util.concurrent TimeUnit)))

(defn under
  "Where a node's data lie, below its directory."
  [test]
  (if (:disks test) "disk/data" "data"))

(defn- ask!
  [{:keys [^java.io.Writer in ^java.io.BufferedReader out]} what]
  (when what
    (.write in (str what "\n"))
    (.flush in))
  (or (.readLine out)
      (throw (ex-info "the disk's process ended" {:asked what}))))

(defn install!
  "Mounts the node's disk, if this run has such disks."
  [test node dir]
  (when (:disks test)
    (let [p (-> (ProcessBuilder. ^java.util.List
                  [(:disks test) "jepsen" "--disk" (str dir "/disk")
                   "--seed" (str (+ (:seed test) (.indexOf ^java.util.List (:nodes test) node)))])
                (.redirectError (io/file dir "disk.log"))
                .start)
          d {:process p
             :in      (io/writer (.getOutputStream p))
             :out     (io/reader (.getInputStream p))}]
      (assert (= "ready" (ask! d nil)))
      (swap! (:mounted test) assoc node d)
      (.mkdirs (io/file dir (under test))))))

(defn lie!
  "Lies from now on, if that is the lie of this run. Not earlier: a cluster that
  forgot its own creation could not be asked anything."
  [test]
  (when (= "lying-disk" (:lie test))
    (doseq [d (vals @(:mounted test))] (ask! d "lie"))))

(defn remove! [test node]
  (when-let [{:keys [^Process process ^java.io.Writer in]} (get @(:mounted test) node)]
    (swap! (:mounted test) dissoc node)
    (.close in)
    (when-not (.waitFor process 10 TimeUnit/SECONDS)
      (.destroyForcibly process))))

(defn mark!
  "Writes a line into the logs of these gateways, which they and we append to, so that
  the logs' checker knows when a disk was off, or a journal spoilt (logs.clj)."
  [test nodes what]
  (c/on-nodes test nodes
              (fn [t n]
                (c/su (c/exec :bash :-c "echo \"$1\" >> \"$2\"" :mark what
                              (str (:dir t) "/" n "/gateway.log"))))))

(defn- cut!
  [all?]
  (fn [test ^Random dice state]
    (let [nodes (if all? (:nodes test)
                    [(nth (vec (:nodes test)) (.nextInt dice (count (:nodes test))))])]
      (mark! test nodes logs/dark)
      ; All at once, as soon as the first disk has unsynced data.
      (doseq [[n what] (map vector nodes (cons "busy" (repeat "off")))]
        (ask! (get @(:mounted test) n) what))
      (c/on-nodes test nodes (fn [t n] (jdb/kill! (:db t) t n)))
      ; `on!` starts it, with all others that are down.
      [(-> state (update :down into nodes) (update :dark (fnil into #{}) nodes))
       {:cut (vec nodes)}])))

(defn- on!
  [test {:keys [dark] :as state}]
  (let [losses (into {} (for [n dark
                              :let [said (ask! (get @(:mounted test) n) "on")]]
                          [n (into {} (for [[_ k v] (re-seq #"\"(\w+)\":(\d+)" said)]
                                        [(keyword k) (parse-long v)]))]))]
    ; The gateways are started after this.
    (mark! test (vec dark) logs/light)
    [(dissoc state :dark)
     {:losses losses
      ; Without unsynced data the cut was only a kill.
      :hit? (boolean (some pos? (mapcat (juxt :kept :lost :torn :names) (vals losses))))}]))

(def faults
  {"unsynced"     {:doc "power cut of one machine: what its gateway did not sync is lost, torn or kept"
                   :begin (cut! false), :end on!}
   "unsynced-all" {:doc "the same of all at once"
                   :begin (cut! true), :end on!}})
