(ns jepsen.holdfast.summary
  "A run in one line of a Markdown table: printed at its end, kept as summary.md
  beside results.edn, and printed for many runs by `summary DIR...`."
  (:require [clojure.edn :as edn]
            [clojure.java.io :as io]
            [clojure.string :as str]
            [jepsen [checker :as checker]
                    [store :as store]]))

(defn- read-results [f]
  (edn/read-string {:default (fn [_ v] v)} (slurp f)))

(defn- verdict [r]
  (case (:valid? r) true "valid", false "**invalid**", "**unknown**"))

(defn- not-valid
  "The checkers in a result without the verdict valid."
  [r]
  (filter (fn [[_ v]] (and (map? v) (contains? v :valid?) (not= true (:valid? v))))
          (dissoc r :valid?)))

(defn- said
  "Name of a checker without the verdict valid; an unknown verdict adds a question
  mark."
  [path v]
  (str (str/join "/" (map name path)) (when-not (false? (:valid? v)) "?")))

(defn red
  "Names of the checkers without the verdict valid. For a composed one the failed
  parts: `workload/knossos`."
  [r]
  (->> (not-valid r)
       (mapcat (fn [[k v]]
                 (let [parts (not-valid v)]
                   ; The parts stand for the checker only if one of them has the checker's own verdict.
                   (if (some #(= (:valid? v) (:valid? (val %))) parts)
                     (map (fn [[part v]] (said [k part] v)) parts)
                     [(said [k] v)]))))
       sort (str/join ", ")))

(defn- tenths [s] (if s (format "%.1f" (double s)) ""))

(defn row
  [{:keys [run coverage availability] :as r}]
  (str "| "
       (str/join " | "
                 [(:workload run) (:nemesis run) (or (:lie run) "")
                  (:time-limit run) (:seed run)
                  (str/join ", " (for [[f n] (sort (:ok coverage))]
                                   (str n " " (name f))))
                  (:unknown coverage)
                  (:faults coverage)
                  (str (tenths (:longest-silence-s availability))
                       (when-let [s (:longest-unasked-s availability)]
                         (when (< 1 s) (str " (" (tenths s) " unasked)"))))
                  (tenths (:without-service-s availability))
                  (str (verdict r)
                       (when-not (true? (:valid? r)) (str " (" (red r) ")")))])
       " |"))

(def head
  (str "| workload | nemesis | lie | seconds | seed | succeeded | unknown | faults | longest silence with a majority, s | without service, s | verdict |\n"
       "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"))

(defn spoken
  "A checker that prints and keeps the row of the result of `c`."
  [c]
  (reify checker/Checker
    (check [_ test history opts]
      (let [r    (checker/check c test history opts)
            line (row r)]
        (spit (store/path! test "summary.md") (str line "\n"))
        (println (str "SUMMARY " line))
        (flush)
        r))))

(defn print-summary [dirs]
  (println head)
  (doseq [f (->> dirs
                 (mapcat #(file-seq (io/file %)))
                 (filter #(= "results.edn" (.getName ^java.io.File %)))
                 (remove #(str/includes? (.getPath ^java.io.File %) "/latest/"))
                 (sort-by #(.lastModified ^java.io.File %)))
          :let [r (read-results f)]
          :when (:run r)]
    (println (row r))))
