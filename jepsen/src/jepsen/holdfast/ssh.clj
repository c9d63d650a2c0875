(ns jepsen.holdfast.ssh
  "Nodes that are separate hosts, reached over SSH: their requirements, the paths of
  programs, and a store that all of them reach.

  Nothing is installed on them: a host without the programs below is refused, with
  the names of their packages. Our programs are copied there.

      DIR/programs/DIGEST-holdfast   stays, so that the next run need not copy it"
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [jepsen [control :as c]
                    [os :as os]])
  (:import (java.security MessageDigest)))

(def needs
  "{program package}, as Debian calls them."
  (sorted-map "iptables" "iptables", "start-stop-daemon" "dpkg"))

(defn- lacking
  "Of these programs, which the node has not."
  [programs]
  (remove str/blank?
          (str/split-lines
            (c/exec :bash :-c "for p; do [ -x \"$(type -P \"$p\")\" ] || echo \"$p\"; done"
                    :lacking programs))))

(defn- missing
  "Packages. sudo is checked as the login user, the others as root, whose PATH
  includes the sbin directories."
  []
  (if (seq (lacking ["sudo"]))
    ["sudo"]
    (c/su (mapv needs (lacking (keys needs))))))

(def os
  (reify os/OS
    (setup! [_ _ node]
      (when-let [packages (seq (missing))]
        (throw (IllegalStateException.
                 (str "node " node " lacks programs; on it: apt-get install "
                      (str/join " " packages))))))
    (teardown! [_ _ _])))

(defn- digest*
  "Of a file of this machine: the first 16 digits of its SHA-256."
  [file]
  (let [sum    (MessageDigest/getInstance "SHA-256")
        buffer (byte-array 65536)]
    (with-open [in (io/input-stream file)]
      (loop []
        (let [n (.read ^java.io.InputStream in ^bytes buffer)]
          (when (pos? n)
            (.update sum buffer 0 n)
            (recur)))))
    (subs (str/join (map #(format "%02x" %) (.digest sum))) 0 16)))

(def ^:private digest (memoize digest*))

(defn program
  "Where a program of this machine is on the nodes."
  [test file]
  (if (:netns test)
    file
    (str (:dir test) "/programs/" (digest file) "-" (.getName (io/file file)))))

(defn copy!
  "Has the node have a program of this machine."
  [test file]
  (when-not (:netns test)
    (let [at (program test file)]
      (c/su
        (when-not (= "yes" (c/exec :bash :-c "[ -e \"$1\" ] && echo yes || echo no" :there at))
          (c/exec :mkdir :-p (str (:dir test) "/programs"))
          ; Uploaded under another name and then moved, so a file at this path is complete.
          (c/upload file at))
        (c/exec :chmod "755" at)))))

(defn store-of-its-own
  "The store's URL with a folder for this run: a set is founded in an empty one."
  [url folder]
  (let [[at query] (str/split url #"\?" 2)]
    (cond-> (str (str/replace at #"/+$" "") "/" folder)
      query (str "?" query))))

(defn fitted
  "Options; throws where they cannot be had over SSH."
  [{:keys [store] :as opts}]
  (when (#{"file" "s3"} store)
    (throw (IllegalArgumentException.
             (str "--store: found " store ", expected over SSH the URL of a store that all gateways reach"
                  " (s3://BUCKET/PREFIX, and --s3-endpoint URL if it is not AWS), or --netns with it"))))
  opts)
