(ns jepsen.holdfast.porcupine
  "Porcupine, a second judge that shares nothing with Knossos: the history goes
  out as JSON lines to the program in porcupine/ (--porcupine PATH)."
  (:require [clojure.java.io :as io]
            [clojure.java.shell :refer [sh]]
            [clojure.string :as str]
            [jepsen [checker :as checker]
                    [history :as h]
                    [independent :as independent]
                    [store :as store]]))

(defn- line
  [m]
  (str "{" (str/join "," (for [[k v] m :when (some? v)]
                           (str "\"" (name k) "\":"
                                (if (number? v) v (str "\"" (name v) "\"")))))
       "}\n"))

(defn operation
  "One line of input; nil for operations without information: failures, and reads
  without an answer. `more` returns the fields of an f and its value, from the
  operation as far as it is known, or nil for no information either."
  [invoke completion more]
  (let [ok?   (= :ok (:type completion))
        [k v] (let [v (:value (if ok? completion invoke))]
                (if (independent/tuple? v) v [0 v]))]
    (when (or ok? (and (= :info (:type completion)) (not= :read (:f invoke))))
      (when-let [fields (more (:f invoke) v completion)]
        (line (merge {:client (:process invoke), :key k, :kind (:f invoke)
                      :call (:time invoke)
                      :return (when ok? (:time completion))}
                     fields))))))

(defn- value-only [_f v _op] {:value v})

(defn checker
  "Options: :model, as in porcupine/main.go; :more, see `operation`; :file, the name
  of the input in the test's folder."
  [{:keys [model more file] :or {more value-only, file "porcupine.jsonl"}}]
  (reify checker/Checker
    (check [_ test history opts]
      (let [path (.getCanonicalPath
                   (store/path! test (:subdirectory opts) file))
            ops  (h/filter h/invoke? (h/client-ops history))]
        (with-open [w (io/writer path)]
          (doseq [op ops]
            (when-let [l (operation op (or (h/completion history op)
                                           (assoc op :type :info))
                                    more)]
              (.write w ^String l))))
        (let [{:keys [exit out err]} (sh (:porcupine test) model path)]
          {:valid? (case (int exit) 0 true, 1 false, :unknown)
           :said   (str/trim (str out err))})))))
